#map = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>
!row = tensor<2x2xf32>
#where = loc("model.py":3:5)
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: !row loc(#where)) -> !row {
    %0 = "stablehlo.dot_general"(%x, %x) <{dot_dimension_numbers = #map}> : (!row, !row) -> !row loc(#where)
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : !row
    %2 = sdy.reshard %1 <@mesh, [{}, {"x"}]> : !row
    %3 = sdy.propagation_barrier %2 allowed_direction=NONE : !row
    sdy.sharding_group %3 group_id=21 : !row
    return %3 : !row loc(#where)
  } loc(#where)
} loc(#where)
