"""What collectives, control flow, calls and channels refuse: one program for each constraint."""

from __future__ import annotations

import re

import pytest

from smelt.errors import VerifyError
from tests.unit.ir.refused import body, one_op

Row = tuple[str, ...]  # op, operand types, result types, attributes, regions, message

SUM = body("f32 f32", "f32", '%v0 = "stablehlo.add"(%a0, %a1) : (tensor<f32>, tensor<f32>) -> tensor<f32>')
PAIR = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
GLOBAL = f"{PAIR}, use_global_device_ids"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
HALF = body("f32 f32", "f32 f32")


def groups(rows: str, shape: str) -> str:
    return f"replica_groups = dense<{rows}> : tensor<{shape}xi64>"


def grouped(name: str, label: str, gives: str, attrs: str, region: str = "", *, ragged: bool = False) -> list[Row]:
    """Every op over groups refuses the same wrong ones, under a label of its own."""
    cited = f" ({label})" if label else ""
    wrong = [
        (groups("", "0x2"), "replica_groups must not be empty"),
        (groups("[[0, -2]]", "1x2"), "a replica id is negative"),
        (groups("[[1, 1]]", "1x2"), "replica ids must be unique"),
    ]
    if not ragged:
        wrong.append((groups("[[0, -1]]", "1x2"), "a replica id is negative"))
    if name != "collective_reduce":
        wrong.append((groups("[[0, 2]]", "1x2"), "replica ids have gaps"))
    rest = f", {attrs}" if attrs else ""
    return [(f"stablehlo.{name}", "2xf32", gives, given + rest, region, text + cited) for given, text in wrong]


COLLECTIVES: list[Row] = [
    *grouped("all_gather", "all_gather_c2", "4xf32", "all_gather_dim = 0 : i64"),
    *grouped("all_reduce", "all_reduce_c1", "2xf32", "", SUM, ragged=True),
    *grouped("reduce_scatter", "reduce_scatter_c3", "1xf32", "scatter_dimension = 0 : i64", SUM),
    *grouped("collective_reduce", "collective_reduce_c1", "2xf32", "", SUM, ragged=True),
    *grouped("cross-replica-sum", "", "2xf32", "", ragged=True),
    *grouped("all_to_all", "all_to_all_c5", "2xf32",
             "split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64"),
    ("stablehlo.all_gather", "", "4xf32", f"{PAIR}, all_gather_dim = 0 : i64", "",
     "there must be an operand (all_gather_i1)"),
    ("stablehlo.all_gather", "2xf32", "4xf32", f"{PAIR}, all_gather_dim = 1 : i64", "",
     "all_gather_dim must be in [0, 1) (all_gather_c1)"),
    ("stablehlo.all_gather", "2xf32", "4xf32", f"{GLOBAL}, all_gather_dim = 0 : i64", "",
     "use_global_device_ids needs a channel (all_gather_c5)"),
    ("stablehlo.all_gather", "2xf32", "7xf32", f"{PAIR}, {CHANNEL}, all_gather_dim = 0 : i64", "",
     "the gathered size is no multiple (all_gather_c6)"),
    ("stablehlo.all_gather", "0xf32", "1xf32", f"{PAIR}, {CHANNEL}, all_gather_dim = 0 : i64", "",
     "the gathered size is no multiple (all_gather_c6)"),
    ("stablehlo.all_reduce", "", "2xf32", PAIR, SUM, "there must be an operand (all_reduce_i1)"),
    ("stablehlo.all_reduce", "2xf32", "2xf32", GLOBAL, SUM, "use_global_device_ids needs a channel (all_reduce_c4)"),
    ("stablehlo.all_reduce", "2xf32", "2xf32", PAIR, HALF, "the computation must return one tensor (all_reduce_c5)"),
    ("stablehlo.all_reduce", "2xf32", "2xf32", PAIR, body("f32", "f32"),
     "its region takes the wrong number of values (all_reduce_c5)"),
    ("stablehlo.all_reduce", "2xf64", "2xf32", PAIR, SUM, "the computation is not for these elements (all_reduce_c5)"),
    ("stablehlo.all_reduce", "2xi32", "2xf32", PAIR, SUM, "the computation is not for these elements (all_reduce_c5)"),
    ("stablehlo.reduce_scatter", "2xf32", "1xf32", f"{PAIR}, scatter_dimension = 1 : i64", SUM,
     "scatter_dimension must be in [0, 1) (reduce_scatter_c2)"),
    ("stablehlo.reduce_scatter", "2xf32", "1xf32", f"{GLOBAL}, scatter_dimension = 0 : i64", SUM,
     "use_global_device_ids needs a channel (reduce_scatter_c6)"),
    ("stablehlo.reduce_scatter", "3xf32", "1xf32", f"{PAIR}, scatter_dimension = 0 : i64", SUM,
     "a dimension does not split evenly (reduce_scatter_c1)"),
    ("stablehlo.reduce_scatter", "3xf32", "1xf32", f"{PAIR}, {CHANNEL}, scatter_dimension = 0 : i64", SUM,
     "the scattered size is no divisor (reduce_scatter_c8)"),
    ("stablehlo.collective_reduce", "2xf32", "2xf32", GLOBAL, SUM,
     "use_global_device_ids needs a channel (collective_reduce_c2)"),
    ("stablehlo.collective_reduce", "2xf64", "2xf64", PAIR, SUM,
     "a value that its region takes has the wrong type (collective_reduce_c3)"),
    ("stablehlo.collective_reduce", "1xi32", "", f"{PAIR}, has_dynamic_root", SUM,
     "there must be an operand besides the roots"),
    ("stablehlo.collective_reduce", "2xf32 2xi32", "2xf32", f"{PAIR}, has_dynamic_root", SUM,
     "the last operand must hold one root for each other operand"),
    ("stablehlo.collective_reduce", "2xf32 1xi64", "2xf32", f"{PAIR}, has_dynamic_root", SUM,
     "the last operand must hold one root for each other operand"),
    ("stablehlo.collective_reduce", "", "", PAIR, SUM, "there must be an operand"),
    ("stablehlo.cross-replica-sum", "2xi1", "2xi1", PAIR, "", "only numbers have a sum"),
    ("stablehlo.all_to_all", "", "2xf32",
     f"{PAIR}, split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64", "",
     "there must be an operand (all_to_all_i1)"),
    *(("stablehlo.all_to_all", "2x4xf32", "2x4xf32", f"{PAIR}, split_dimension = {split} : i64, "
       f"concat_dimension = {concat} : i64, split_count = {count} : i64", "", message)
      for split, concat, count, message in (
          (2, 0, 2, "split_dimension must be in [0, 2) (all_to_all_c1)"),
          (0, 2, 2, "concat_dimension must be in [0, 2) (all_to_all_c3)"),
          (0, 0, 0, "split_count must be positive (all_to_all_c4)"),
          (0, 0, 1, "split_count is not the size of a group (all_to_all_c8)"),
      )),
    ("stablehlo.all_to_all", "3xf32", "3xf32",
     f"{PAIR}, split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64", "",
     "a dimension does not split evenly (all_to_all_c2)"),
]  # fmt: skip

TO_HOST = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true"
TO_DEVICE = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true"
CHANNELS: list[Row] = [
    ("stablehlo.send", "2xf32", "token", TO_HOST, "", "the last operand must be a token (send_i2)"),
    ("stablehlo.send", "token token", "token", TO_HOST, "", "operand 0 must be a tensor"),
    ("stablehlo.send", "2xf32 token", "token", TO_DEVICE, "",
     "the channel's type does not fit is_host_transfer (send_c1)"),
    ("stablehlo.recv", "token", "2xf32 token", TO_HOST, "",
     "the channel's type does not fit is_host_transfer (recv_c1)"),
    ("stablehlo.recv", "token", "", TO_DEVICE, "", "there must be a result (recv_c1)"),
    ("stablehlo.recv", "token", "2xf32", TO_DEVICE, "", "the last result must be a token (recv_c3)"),
    ("stablehlo.recv", "token", "token token", TO_DEVICE, "", "all results but the last must be tensors (recv_c2)"),
    ("stablehlo.recv", "2xf32", "2xf32 token", TO_DEVICE, "", "the last operand must be a token (recv_i1)"),
    ("stablehlo.infeed", "2xf32", "2xf32 token", "", "", "the last operand must be a token (infeed_i1)"),
    ("stablehlo.infeed", "token", "2xf32 token", "layout = []", "", "layout needs one entry for each tensor"),
    ("stablehlo.outfeed", "2xf32", "token", "", "", "the last operand must be a token (outfeed_i2)"),
    ("stablehlo.after_all", "2xf32", "token", "", "", "every operand must be a token (after_all_i1)"),
]  # fmt: skip

ONE = body("", "2xf32", '%v0 = "stablehlo.constant"() {value = dense<1.0> : tensor<2xf32>} : () -> tensor<2xf32>')
TWO = body("", "i32", '%v0 = "stablehlo.constant"() {value = dense<1> : tensor<i32>} : () -> tensor<i32>')
TOKENS = body("", "token", '%v0 = "stablehlo.after_all"() : () -> !stablehlo.token')
NEVER = '%v0 = "stablehlo.constant"() {value = dense<false> : tensor<i1>} : () -> tensor<i1>'
CONTROL: list[Row] = [
    ("stablehlo.if", "i1", "2xf32", "", f"{ONE}, {TWO}", "result 0 differs between branches (if_c2)"),
    ("stablehlo.if", "i1", "2xf32", "", f"{ONE}, {TOKENS}", "result 0 differs between branches (if_c2)"),
    ("stablehlo.if", "i1", "2xf32", "", f"{ONE}, {body('2xf32', '2xf32')}", "a branch takes no arguments"),
    ("stablehlo.if", "i1", "2xf32", "", f"{ONE}, {body('', '')}", "the branches return different numbers of values"),
    ("stablehlo.case", "i32", "2xf32", "", f"{ONE}, {TWO}", "result 0 differs between branches"),
    ("stablehlo.while", "2xf32", "2xf32", "", f"{body('2xf32', 'i1', NEVER)}, {body('2xf32', '')}",
     "the body returns the wrong number of values (while_c2)"),
    ("stablehlo.while", "2xf32", "2xf32", "", f"{body('3xf32', 'i1', NEVER)}, {body('2xf32', '2xf32')}",
     "value 0 of the loop has another type in a region (while_c1)"),
    ("stablehlo.while", "2xf32", "2xf32", "", f"{body('2xf32', 'i1', NEVER)}, {body('2xf64', '2xf64')}",
     "value 0 of the loop has another type in a region (while_c2)"),
    ("stablehlo.while", "2xf32", "2xf32", "", f"{body('token', 'i1', NEVER)}, {body('2xf32', '2xf32')}",
     "value 0 of the loop has another type in a region (while_c1)"),
    ("stablehlo.while", "2xf32 i1", "2xf32 i1", "", f"{body('2xf32 i1', 'i1', NEVER)}, {body('2xf32', '2xf32')}",
     "a region takes the wrong number of values (while_c2)"),
    ("stablehlo.while", "i32 2xf32", "i32 2xf32", "", f"{body('i32 2xf32', 'i1', NEVER)}, "
     + body("i32 2xf32", "2xf32 i32", '%v0, %v1 = "stablehlo.optimization_barrier"(%a1, %a0) : '
            "(tensor<2xf32>, tensor<i32>) -> (tensor<2xf32>, tensor<i32>)"),
     "the body returns another type for value 0 (while_c2)"),
    ("stablehlo.while", "2xf32 3xf32", "2xf32 3xf32", "", f"{body('2xf32 3xf32', 'i1', NEVER)}, "
     + body("2xf32 3xf32", "3xf32 2xf32", '%v0, %v1 = "stablehlo.optimization_barrier"(%a1, %a0) : '
            "(tensor<3xf32>, tensor<2xf32>) -> (tensor<3xf32>, tensor<2xf32>)"),
     "the body returns another type for value 0 (while_c2)"),
    ("stablehlo.while", "token i32", "token i32", "", f"{body('token i32', 'i1', NEVER)}, "
     + body("token i32", "i32 token", '%v0, %v1 = "stablehlo.optimization_barrier"(%a1, %a0) : '
            "(tensor<i32>, !stablehlo.token) -> (tensor<i32>, !stablehlo.token)"),
     "the body returns another type for value 0 (while_c2)"),
]  # fmt: skip


def alias(operand: int = 0, part: str = "", out: str = "") -> str:
    return (
        f'call_target_name = "x", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = '
        f"[{out}], operand_index = {operand}, operand_tuple_indices = [{part}]>]"
    )


LAYOUT = "dense<0> : tensor<1xindex>"
CALLS: list[Row] = [
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", api_version = 5 : i32', "", "no such api_version"),
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", api_version = -1 : i32', "", "no such api_version"),
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", api_version = 4 : i32, backend_config = "text"', "",
     "backend_config with api_version 4"),
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", api_version = 2 : i32, backend_config = {}', "",
     "backend_config with api_version 2"),
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", called_computations = [@away]', "",
     "no function @away"),
    ("stablehlo.custom_call", "2xf32", "2xf32", f'call_target_name = "x", operand_layouts = [{LAYOUT}]', "",
     "result_layouts needs one layout for each result"),
    ("stablehlo.custom_call", "2xf32", "2xf32", f'call_target_name = "x", result_layouts = [{LAYOUT}]', "",
     "operand_layouts needs one layout for each operand"),
    ("stablehlo.custom_call", "2x2xf32", "2xf32",
     f'call_target_name = "x", operand_layouts = [{LAYOUT}], result_layouts = [{LAYOUT}]', "",
     "the layout of a operand must order its dimensions"),
    ("stablehlo.custom_call", "token", "2xf32",
     f'call_target_name = "x", operand_layouts = [{LAYOUT}], result_layouts = [{LAYOUT}]', "",
     "the layout of a operand must order its dimensions"),
    ("stablehlo.custom_call", "2xf32", "2xf32", alias(1), "", "an alias of an operand that is not there"),
    ("stablehlo.custom_call", "2xf32", "2xf32", alias(-1), "", "an alias of an operand that is not there"),
    ("stablehlo.custom_call", "2xf32", "2xf32", alias(part="0"), "", "an alias of a part that is not there"),
    ("stablehlo.custom_call", "2xf32", "2xf32 2xf32", alias(out="2"), "", "an alias of a part that is not there"),
    ("stablehlo.custom_call", "2xf32", "3xf32", alias(), "",
     "an operand and a result of different types share their place"),
    ("stablehlo.custom_call", "?xf32", "?xf64", alias(), "",
     "an operand and a result of different types share their place"),
    ("stablehlo.async_done", "2xf32", "2xf32", "", "", "the operand must be a future (async_done_i1)"),
]  # fmt: skip

ROWS = [*COLLECTIVES, *CHANNELS, *CONTROL, *CALLS]


@pytest.mark.parametrize(
    ("name", "takes", "gives", "attrs", "regions", "message"), ROWS, ids=[f"{row[0]}-{row[-1][:48]}" for row in ROWS]
)
def test_refused(name: str, takes: str, gives: str, attrs: str, regions: str, message: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        one_op(name, takes, gives, attrs, regions)
    assert caught.value.message.startswith(f"{name}: ")


TAKEN: list[Row] = [
    ("stablehlo.all_gather", "2xf32", "4xf32", f"{GLOBAL}, {CHANNEL}, all_gather_dim = 0 : i64"),
    ("stablehlo.all_gather", "2xf32", "8xf32", f"{PAIR}, {CHANNEL}, all_gather_dim = 0 : i64"),
    ("stablehlo.all_reduce", "2xf32", "2xf32", groups("[[0, 1], [2, -1]]", "2x2"), SUM),
    ("stablehlo.all_reduce", "2xf16", "2xf32", PAIR, SUM),
    ("stablehlo.reduce_scatter", "4xf32", "1xf32", f"{PAIR}, {CHANNEL}, scatter_dimension = 0 : i64", SUM),
    ("stablehlo.collective_reduce", "2xf32", "2xf32", groups("[[0, 5]]", "1x2"), SUM),
    ("stablehlo.collective_reduce", "2xf32 1xi32", "2xf32", f"{PAIR}, has_dynamic_root", SUM),
    ("stablehlo.send", "2xf32 token", "token", TO_HOST),
    ("stablehlo.recv", "token", "token", TO_DEVICE),
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", api_version = 0 : i32'),
    ("stablehlo.custom_call", "", "2xf32", 'call_target_name = "x", api_version = 4 : i32, backend_config = {}'),
    ("stablehlo.custom_call", "2xf32", "2xf32 2xf32", alias(out="1")),
    (
        "stablehlo.custom_call",
        "token",
        "2xf32",
        f'call_target_name = "x", operand_layouts = [dense<> : tensor<0xindex>], result_layouts = [{LAYOUT}]',
    ),
    ("stablehlo.all_gather", "0xf32", "0xf32", f"{PAIR}, {CHANNEL}, all_gather_dim = 0 : i64"),
    ("stablehlo.custom_call", "tuple<tensor<2xf32>>", "2xf32", alias(part="0")),
]


@pytest.mark.parametrize("row", TAKEN, ids=[f"{row[0]}-{row[1][:20]}" for row in TAKEN])
def test_extreme_values_are_accepted(row: Row) -> None:
    one_op(*row)
