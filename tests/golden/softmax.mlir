func.func @main(%x: tensor<?x100xf32, #smelt.sizes<n, 100>>) -> tensor<?x100xf32, #smelt.sizes<n, 100>> {
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %most = stablehlo.reduce(%x init: %least) applies stablehlo.maximum across dimensions = [1] : (tensor<?x100xf32, #smelt.sizes<n, 100>>, tensor<f32>) -> tensor<?xf32, #smelt.sizes<n>>
  %count = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x100xf32, #smelt.sizes<n, 100>>) -> tensor<i32>
  %rows = stablehlo.reshape %count : (tensor<i32>) -> tensor<1xi32>
  %columns = stablehlo.constant dense<100> : tensor<1xi32>
  %sizes = stablehlo.concatenate %rows, %columns, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %wide = stablehlo.dynamic_broadcast_in_dim %most, %sizes, dims = [0] : (tensor<?xf32, #smelt.sizes<n>>, tensor<2xi32>) -> tensor<?x100xf32, #smelt.sizes<n, 100>>
  %less = stablehlo.subtract %x, %wide : tensor<?x100xf32, #smelt.sizes<n, 100>>
  %powers = stablehlo.exponential %less : tensor<?x100xf32, #smelt.sizes<n, 100>>
  %sum = stablehlo.reduce(%powers init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x100xf32, #smelt.sizes<n, 100>>, tensor<f32>) -> tensor<?xf32, #smelt.sizes<n>>
  %all = stablehlo.dynamic_broadcast_in_dim %sum, %sizes, dims = [0] : (tensor<?xf32, #smelt.sizes<n>>, tensor<2xi32>) -> tensor<?x100xf32, #smelt.sizes<n, 100>>
  %result = stablehlo.divide %powers, %all : tensor<?x100xf32, #smelt.sizes<n, 100>>
  return %result : tensor<?x100xf32, #smelt.sizes<n, 100>>
}
