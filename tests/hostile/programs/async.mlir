func.func @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  %0 = "stablehlo.async_start"(%x) ({
    ^bb0(%y: tensor<2x2xf32>):
      %r = "stablehlo.all_gather"(%y) <{all_gather_dim = 1 : i64, replica_groups = dense<0> : tensor<1x1xi64>}> : (tensor<2x2xf32>) -> tensor<2x2xf32>
      "stablehlo.return"(%r) : (tensor<2x2xf32>) -> ()
  }) : (tensor<2x2xf32>) -> !stablehlo.future<tensor<2x2xf32>>
  %1 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<2x2xf32>>) -> tensor<2x2xf32>
  return %1 : tensor<2x2xf32>
}
