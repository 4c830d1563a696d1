func.func @main(%w: tensor<200x24xf32> {smelt.weight = "w"}, %x: tensor<7x200xf32>) -> tensor<7x24xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<7x24xf32>
  %made = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<7x200xf32>, tensor<200x24xf32>) -> tensor<7x24xf32>
  %result = stablehlo.maximum %made, %zero : tensor<7x24xf32>
  return %result : tensor<7x24xf32>
}
