func.func @main() -> (tensor<2x2xf32>, tensor<2xcomplex<f32>>, tensor<4xi8>, tensor<3xi1>, tensor<0x2xf64>, tensor<2xbf16>) {
  %0 = stablehlo.constant dense<[[1.0, -2.5e-1], [0x7FC00000, 0.0]]> : tensor<2x2xf32>
  %1 = stablehlo.constant dense<[(1.0, 2.0), (0.0, -1.0)]> : tensor<2xcomplex<f32>>
  %2 = stablehlo.constant dense<"0x01FF7F80"> : tensor<4xi8>
  %3 = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
  %4 = stablehlo.constant dense<> : tensor<0x2xf64>
  %5 = stablehlo.constant dense<1.5> : tensor<2xbf16>
  return %0, %1, %2, %3, %4, %5 : tensor<2x2xf32>, tensor<2xcomplex<f32>>, tensor<4xi8>, tensor<3xi1>, tensor<0x2xf64>, tensor<2xbf16>
}
