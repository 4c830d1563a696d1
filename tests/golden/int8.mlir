func.func @main(%x: tensor<1x3x8xui8>, %w: tensor<1x1x2x64xi8>) -> tensor<1x3x16xi32> {
  %result = "smelt.packed_dot"(%x, %w) {layout = "gkn->g n/16 k/4 (n%16 k%4)"} : (tensor<1x3x8xui8>, tensor<1x1x2x64xi8>) -> tensor<1x3x16xi32>
  return %result : tensor<1x3x16xi32>
}
