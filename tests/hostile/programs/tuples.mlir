func.func @main(%x: tensor<2xf32>, %n: tensor<i32>) -> (tuple<tensor<2xf32>, tuple<tensor<i32>>>, tensor<i32>) {
  %0 = stablehlo.tuple %n : tuple<tensor<i32>>
  %1 = stablehlo.tuple %x, %0 : tuple<tensor<2xf32>, tuple<tensor<i32>>>
  %2 = stablehlo.get_tuple_element %1[1] : (tuple<tensor<2xf32>, tuple<tensor<i32>>>) -> tuple<tensor<i32>>
  %3 = stablehlo.get_tuple_element %2[0] : (tuple<tensor<i32>>) -> tensor<i32>
  return %1, %3 : tuple<tensor<2xf32>, tuple<tensor<i32>>>, tensor<i32>
}
