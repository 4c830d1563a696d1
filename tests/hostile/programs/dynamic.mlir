func.func @main(%x: tensor<?x3xf32>, %y: tensor<?x3xf32>) -> tensor<?x?xf32> {
  %0 = stablehlo.concatenate %x, %y, dim = 0 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
  %n = stablehlo.get_dimension_size %0, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %a = stablehlo.reshape %three : (tensor<i32>) -> tensor<1xi32>
  %b = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %s = stablehlo.concatenate %a, %b, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %1 = stablehlo.dynamic_reshape %0, %s : (tensor<?x3xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
