func.func @main() -> (tensor<i64>, tensor<3xf32>) {
  %init_i = stablehlo.constant dense<0> : tensor<i64>
  %init_x = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %limit = stablehlo.constant dense<4> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %0:2 = stablehlo.while(%i = %init_i, %x = %init_x) : tensor<i64>, tensor<3xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i64>
      %2 = stablehlo.add %x, %x : tensor<3xf32>
      stablehlo.return %1, %2 : tensor<i64>, tensor<3xf32>
    }
  return %0#0, %0#1 : tensor<i64>, tensor<3xf32>
}
