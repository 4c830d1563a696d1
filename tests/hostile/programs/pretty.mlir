module @example attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<3x4xf32> {jax.arg_info = "x"}) -> (tensor<3xf32> {jax.result_info = ""}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = call @square(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<3xf32>) -> tensor<3x4xf32>
    %3 = stablehlo.compare LT, %0, %2, FLOAT : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xi1>
    %4 = stablehlo.select %3, %0, %2 : tensor<3x4xi1>, tensor<3x4xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %6 = stablehlo.slice %5 [1:2, 0:3] : (tensor<4x3xf32>) -> tensor<1x3xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x3xf32>) -> tensor<3xf32>
    %8 = stablehlo.dot_general %0, %5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<3x4xf32>, tensor<4x3xf32>) -> tensor<3x3xf32>
    %9 = stablehlo.dot_general %8, %7, contracting_dims = [0] x [0] : (tensor<3x3xf32>, tensor<3xf32>) -> tensor<3xf32>
    return %9 : tensor<3xf32>
  }
  func.func private @square(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<3x4xf32>
    return %0 : tensor<3x4xf32>
  }
}
