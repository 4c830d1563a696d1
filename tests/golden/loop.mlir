func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %last = stablehlo.constant dense<7> : tensor<i32>
  %all:2 = stablehlo.while(%i = %zero, %table = %x) : tensor<i32>, tensor<8x4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %row = stablehlo.dynamic_slice %table, %i, %zero, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %sine = stablehlo.sine %row : tensor<1x4xf32>
    %made = stablehlo.dynamic_update_slice %table, %sine, %next, %zero : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    stablehlo.return %next, %made : tensor<i32>, tensor<8x4xf32>
  }
  return %all#1 : tensor<8x4xf32>
}
