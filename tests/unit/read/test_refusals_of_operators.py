"""What ONNX operators refuse: one model for each check of attributes and shapes, with the class and the message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from smelt.errors import ParseError, ShapeError, SmeltError, UnsupportedError
from smelt.read.onnx import read
from smelt.read.onnx.graph import StaticError
from smelt.read.onnx.registry import ROWS as REGISTERED
from tests.unit.read.refused import one_node

Row = tuple[type[SmeltError], str, str, list[Any], dict[str, Any]]
ML, MS, TRAINING = "ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training"


def i64(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


def f32(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


def row(error: type[SmeltError], message: str, op: str, *inputs: Any, **attrs: Any) -> Row:
    return error, message, op, list(inputs), attrs


IMAGE = "f32[1,2,4,4]"
FOUR = np.ones(4, np.float32)
MOVES = [
    row(ShapeError, "Reshape: sizes 0 and -1 together", "Reshape", "f32[2,3]", i64(0, -1), allowzero=1),
    row(ShapeError, "Reshape: impossible sizes", "Reshape", "f32[2,3]", i64(-1, -1)),
    row(ShapeError, "Reshape: impossible sizes", "Reshape", "f32[2,3]", i64(-2, 3)),
    row(ShapeError, "Reshape: the number of elements changes", "Reshape", "f32[2,3]", i64(2, 2)),
    row(ParseError, "Concat: inputs of different types", "Concat", i64(1), np.ones(1, np.int32), axis=0),
    row(ParseError, "Concat: inputs of different types", "Concat", "f32[2]", "f64[2]", "f32[2]", axis=0),
    row(ShapeError, "Flatten: axis is out of range", "Flatten", "f32[2,3]", axis=3),
    row(ShapeError, "Flatten: axis is out of range", "Flatten", "f32[2,3]", axis=-3),
    row(StaticError, "Squeeze without axes of a tensor whose sizes are not fixed", "Squeeze", "f32[N,1]"),
    row(ShapeError, "Squeeze: a dimension that is not 1", "Squeeze", "f32[2,1]", i64(0)),
    row(ShapeError, "Transpose: perm must name every dimension once", "Transpose", "f32[2,3]", perm=[0, 0]),
    row(ShapeError, "Tile: one number per dimension", "Tile", "f32[2,3]", i64(2)),
    row(ShapeError, "Tile: a negative number of repeats", "Tile", "f32[2,3]", i64(2, -1)),
    row(ParseError, "DepthToSpace: attribute 'mode'", "DepthToSpace", "f32[1,4,2,2]", blocksize=2, mode="RCD"),
    row(ShapeError, "DepthToSpace: the block size does not divide", "DepthToSpace", "f32[1,3,2,2]", blocksize=2),
    row(ShapeError, "SpaceToDepth: the block size does not divide", "SpaceToDepth", "f32[1,1,3,2]", blocksize=2),
    row(ParseError, "Split: attribute 'num_outputs'", "Split", "f32[4]", num_outputs=1, outputs=2),
    row(ShapeError, "Split: a negative size", "Split", "f32[4]", i64(5, -1), outputs=2),
    row(ShapeError, "Split: the parts do not make up the whole", "Split", "f32[4]", i64(1, 2), outputs=2),
    row(ShapeError, "Split: without 'num_outputs' all parts are equal", "Split", "f32[5]", outputs=2, version=13),
    row(ShapeError, "Split: fewer parts make up the whole", "Split", "f32[2]", num_outputs=4, outputs=4),
    row(ShapeError, "Slice: starts, ends, axes and steps differ in length", "Slice", "f32[4]", i64(0), i64(1, 2)),
    row(ShapeError, "Slice: a step of 0", "Slice", "f32[4]", i64(0), i64(2), i64(0), i64(0)),
    row(ShapeError, "Pad: two numbers per axis", "Pad", "f32[2,3]", i64(1, 1)),
    row(ParseError, "Pad: attribute 'mode'", "Pad", "f32[4]", i64(1, 1), mode="mirror"),
    row(ParseError, "Pad: attribute 'pads' is missing", "Pad", "f32[4]", version=2),
    row(ShapeError, "a negative size", "ConstantOfShape", i64(-1)),
    row(ShapeError, "Range with a step of 0", "Range", i64(0).reshape(()), i64(2).reshape(()), i64(0).reshape(())),
    row(ShapeError, "EyeLike takes a matrix", "EyeLike", "f32[2]"),
    row(ShapeError, "Trilu takes matrices", "Trilu", "f32[2]"),
    row(ShapeError, "OneHot: depth is one number", "OneHot", "i64[2]", i64(3, 4), f32(0, 1)),
]  # fmt: skip

INDICES = [
    row(ShapeError, "Gather: an index is out of range", "Gather", "f32[2]", i64(2).reshape(())),
    row(ShapeError, "GatherElements: ranks differ", "GatherElements", "f32[2,3]", "i64[2]"),
    row(ShapeError, "GatherND: the indices do not fit", "GatherND", "f32[2,3]", "i64[3]", batch_dims=1),
    row(ShapeError, "GatherND: too many indices", "GatherND", "f32[2]", "i64[2,2]"),
    row(ParseError, "attribute 'reduction'", "ScatterElements", "f32[2]", "i64[1]", "f32[1]", reduction="mean"),
    row(ShapeError, "ScatterElements: ranks differ", "ScatterElements", "f32[2,3]", "i64[2]", "f32[2]"),
    row(ShapeError, "ScatterND: the indices do not fit", "ScatterND", "f32[2]", "i64[1,2]", "f32[1]"),
    row(ShapeError, "BatchNormalization: a parameter does not fit", "BatchNormalization", "f32[2,1,3]", *(FOUR,) * 4),
    row(ShapeError, "InstanceNormalization: a parameter does not fit", "InstanceNormalization", "f32[2,1,3]",
        *(FOUR,) * 2),
    row(ShapeError, "GroupNormalization: a parameter does not fit", "GroupNormalization", "f32[2,1,3]", FOUR, FOUR,
        num_groups=1),
    row(ShapeError, "LayerNormalization: a parameter does not fit", "LayerNormalization", "f32[2,1]", FOUR),
    row(ShapeError, "RMSNormalization: a parameter does not fit", "RMSNormalization", "f32[2,1]", FOUR, version=23),
    row(UnsupportedError, "NonZero of a scalar", "NonZero", "f32[]"),
    row(ShapeError, "Compress: condition must be a vector", "Compress", "f32[2]", "bool[2,1]"),
    row(ShapeError, "SplitToSequence: the parts do not make up the whole", "SplitToSequence", "f32[4]", i64(1, 2)),
    row(StaticError, "SplitToSequence of a size that is not fixed", "SplitToSequence", "f32[N]"),
    row(UnsupportedError, "a sequence is needed here", "SequenceLength", "f32[4]"),
]  # fmt: skip

MATH = [
    row(ShapeError, "axis leaves no room for the right operand", "Add", "f32[2,3]", "f32[3,4]", axis=1, broadcast=1,
        version=6),
    row(ParseError, "BitShift: attribute 'direction'", "BitShift", "ui8[2]", "ui8[2]", direction="UP"),
    row(ParseError, "Gelu: attribute 'approximate'", "Gelu", "f32[2]", approximate="erf"),
    row(ShapeError, "Gemm multiplies matrices", "Gemm", "f32[2]", "f32[2,3]"),
    row(ParseError, "Einsum: attribute 'equation'", "Einsum", "f32[2]", equation="a->b->c"),
    row(ShapeError, "Einsum: an operand has another rank than its term", "Einsum", "f32[2]", equation="ab->a"),
    row(UnsupportedError, "Det of matrices of this size", "Det", "f32[2,3]"),
    row(UnsupportedError, "Det of matrices of this size", "Det", "f32[65,65]"),
    row(ShapeError, "a matrix product of a scalar", "MatMul", "f32[]", "f32[2]"),
    row(ShapeError, "BitCast keeps the width", "BitCast", "f32[2]", to=11, version=26),
    row(UnsupportedError, "random numbers that are not floats", "RandomNormal", shape=[2], dtype=7),
    row(ShapeError, "Multinomial takes [batch, classes]", "Multinomial", "f32[3]"),
]  # fmt: skip

WINDOWS = [
    row(ShapeError, "attributes of the window differ in length", "MaxPool", IMAGE, kernel_shape=[2, 2], strides=[1]),
    row(ShapeError, "a window needs positive sizes", "MaxPool", IMAGE, kernel_shape=[2, 2], strides=[0, 1]),
    row(ShapeError, "a window needs positive sizes", "MaxPool", IMAGE, kernel_shape=[2, 0]),
    row(ShapeError, "attribute 'pads' has the wrong length", "MaxPool", IMAGE, kernel_shape=[2, 2], pads=[0, 0]),
    row(ParseError, "attribute 'auto_pad'", "MaxPool", IMAGE, kernel_shape=[2, 2], auto_pad="SAME"),
    *(row(ShapeError, f"{op} needs a batch, channels and space", op, "f32[1,2]", *rest, **attrs) for op, rest,
        attrs in (
        ("Conv", ["f32[3,2]"], {}), ("ConvTranspose", ["f32[2,3]"], {}), ("MaxPool", [], {"kernel_shape": [1]}),
        ("AveragePool", [], {"kernel_shape": [1]}), ("LpPool", [], {"kernel_shape": [1]}),
    )),
    row(ShapeError, "MaxUnpool needs a batch, channels and space", "MaxUnpool", "f32[1,2]", "i64[1,2]",
        kernel_shape=[1]),
    row(ShapeError, "the kernel does not fit", "Conv", IMAGE, "f32[3,2,3]"),
    row(ShapeError, "the kernel does not fit", "Conv", IMAGE, "f32[3,2,3,3]", kernel_shape=[2, 3]),
    row(StaticError, "a kernel whose size is not fixed", "Conv", IMAGE, "f32[3,2,K,3]"),
    row(ShapeError, "attribute 'pads' has the wrong length", "ConvTranspose", IMAGE, "f32[2,3,3,3]", pads=[0]),
    row(StaticError, "attribute 'ceil_mode' with sizes that are not fixed", "MaxPool", "f32[1,2,N,4]",
        kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1),
    row(ShapeError, "GroupNormalization: attribute 'num_groups'", "GroupNormalization", "f32[1,4,2]", "f32[4]",
        "f32[4]",
        num_groups=3),
    row(UnsupportedError, "BatchNormalization: attribute 'spatial' = 0", "BatchNormalization", IMAGE, *["f32[2]"] * 4,
        spatial=0, version=7),
    row(ParseError, "LpNormalization: attribute 'p'", "LpNormalization", "f32[2]", p=3),
    row(UnsupportedError, "Dropout in training mode", "Dropout", "f32[2]", is_test=0, version=6),
    row(ShapeError, "Dropout: ratio is out of range", "Dropout", "f32[2]", np.float32(1), np.array(True)),
]  # fmt: skip

SIGNALS = [
    row(ShapeError, "Resize: one scale per axis", "Resize", IMAGE, None, f32(1, 1)),
    row(ShapeError, "Resize: either scales or sizes, one per axis", "Resize", IMAGE),
    row(ShapeError, "Resize: impossible scales", "Resize", IMAGE, None, f32(1, 1, 0, 1)),
    row(ShapeError, "Resize: roi has two numbers per axis", "Resize", IMAGE, f32(0, 0, 1), f32(1, 1, 2, 2),
        coordinate_transformation_mode="tf_crop_and_resize"),
    row(ShapeError, "STFT takes [batch, length, parts]", "STFT", "f32[8]", np.int64(2), f32(1, 1)),
    row(ShapeError, "STFT: input 'window' has the wrong rank", "STFT", "f32[1,8,1]", np.int64(2), f32(1,
        1).reshape(1, 2)),
    row(ShapeError, "DFT: the last dimension holds the parts of a complex number", "DFT", "f32[1,4,3]"),
    row(ShapeError, "DFT: attribute 'onesided' does not fit the input", "DFT", "f32[1,4,2]", onesided=1),
    row(ShapeError, "DFT: attribute 'onesided' does not fit the input", "DFT", "f32[1,4,1]", onesided=1, inverse=1),
    row(ShapeError, "HannWindow: impossible size", "HannWindow", np.int64(-1)),
    row(ShapeError, "MelWeightMatrix: frequencies outside the spectrum", "MelWeightMatrix", np.int64(8), np.int64(16),
        np.int64(8000), np.float32(0), np.float32(8000)),
    row(ShapeError, "MelWeightMatrix: frequencies outside the spectrum", "MelWeightMatrix", np.int64(8), np.int64(16),
        np.int64(8000), np.float32(-600), np.float32(4000)),
    row(ShapeError, "MelWeightMatrix: impossible sizes", "MelWeightMatrix", np.int64(0), np.int64(8), np.int64(8000),
        np.float32(0), np.float32(4000)),
    row(ParseError, "GridSample: attribute 'mode'", "GridSample", IMAGE, "f32[1,2,2,2]", mode="area"),
    row(ParseError, "GridSample: attribute 'padding_mode'", "GridSample", IMAGE, "f32[1,2,2,2]", padding_mode="wrap"),
    row(ShapeError, "GridSample: the grid does not fit", "GridSample", IMAGE, "f32[1,2,2,3]"),
    row(UnsupportedError, "GridSample of more than three spatial", "GridSample", "f32[1,1,2,2,2,2]",
        "f32[1,2,2,2,2,4]"),
    row(ParseError, "RoiAlign: attribute 'coordinate_transformation_mode'", "RoiAlign", IMAGE, "f32[1,4]", i64(0),
        coordinate_transformation_mode="half"),
    row(ParseError, "RoiAlign: attribute 'mode'", "RoiAlign", IMAGE, "f32[1,4]", i64(0), mode="sum"),
    row(ShapeError, "DeformConv: input 'X' has the wrong rank", "DeformConv", "f32[1,2,4]", "f32[3,2,3]", "f32[1,6,2]"),
    row(ShapeError, "Col2Im: the blocks do not fit the image", "Col2Im", "f32[1,4,4]", i64(3, 3), i64(4, 2)),
    *(row(ParseError, f"{op}: attribute '{name}'", op, "f32[3,1,2]", f"f32[1,{gates * 2},2]", f"f32[1,{gates * 2},2]",
          hidden_size=2, **{name: value})
      for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
      for name, value in (("direction", "backward"), ("layout", 2), ("activations", ["Tanh"] * 5),
                          ("activations", ["Cosine"] * {"RNN": 1, "GRU": 2, "LSTM": 3}[op]))),
    row(UnsupportedError, "LSTM: attribute 'hidden_size' is not the recurrence's", "LSTM", "f32[3,1,2]", "f32[1,8,2]",
        "f32[1,8,2]", hidden_size=3),
]  # fmt: skip

TEXT = [
    row(UnsupportedError, "RegexFullMatch takes text", "RegexFullMatch", "f32[2]", pattern="a"),
    row(ParseError, "RegexFullMatch: attribute 'pattern'", "RegexFullMatch", ["a"], pattern="("),
    row(UnsupportedError, "StringConcat takes text", "StringConcat", "f32[2]", ["a"]),
    row(UnsupportedError, "StringSplit takes text", "StringSplit", "f32[2]", outputs=2),
    row(UnsupportedError, "StringNormalizer takes a vector of text", "StringNormalizer", "f32[2]"),
    row(ParseError, "StringNormalizer: attribute 'case_change_action'", "StringNormalizer", ["a"],
        case_change_action="TITLE"),
    row(ParseError, "TfIdfVectorizer: attribute 'mode'", "TfIdfVectorizer", "i64[4]", mode="TD", min_gram_length=1,
        max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0], pool_int64s=[1]),
    row(ParseError, "TfIdfVectorizer: the pool is of another type than the input", "TfIdfVectorizer", "i64[4]",
        mode="TF",
        min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0],
         pool_strings=["a"]),
]  # fmt: skip


def ml(error: type[SmeltError], message: str, op: str, *inputs: Any, **attrs: Any) -> Row:
    return row(error, message, op, *inputs, domain=ML, **attrs)


FEATURES = "f32[2,3]"
SVM = {"kernel_type": "LINEAR", "kernel_params": [1.0, 0.0, 1.0], "support_vectors": [1.0] * 9}
THREE = {"vectors_per_class": [1, 1, 1], "coefficients": [1.0] * 6, "rho": [0.0] * 3, "classlabels_ints": [0, 1, 2]}
LEARNT = [
    ml(ShapeError, "ArrayFeatureExtractor of a scalar", "ArrayFeatureExtractor", "f32[]", i64(0)),
    ml(UnsupportedError, "ArrayFeatureExtractor of text in several rows", "ArrayFeatureExtractor",
       np.array([["a", "b"], ["c", "d"]], object), "i64[1]"),
    ml(ShapeError, "1 or 3 numbers", "Scaler", FEATURES, offset=[1.0, 2.0], scale=[1.0]),
    ml(ParseError, "Imputer: values must be given either as floats or as integers", "Imputer", FEATURES,
       imputed_value_floats=[1.0], imputed_value_int64s=[1]),
    ml(ParseError, "Imputer: values of another type than the input", "Imputer", FEATURES, imputed_value_int64s=[1]),
    ml(ShapeError, "Normalizer takes [batch, features]", "Normalizer", "f32[2,3,4]"),
    ml(ParseError, "Normalizer: attribute 'norm'", "Normalizer", FEATURES, norm="L3"),
    ml(ParseError, "FeatureVectorizer: attribute 'inputdimensions'", "FeatureVectorizer", FEATURES,
       inputdimensions=[3, 4]),
    ml(ParseError, "OneHotEncoder: categories of another type than the input", "OneHotEncoder", FEATURES,
       cats_strings=["a"]),
    ml(ParseError, "LabelEncoder: keys and values differ in number", "LabelEncoder", "i64[2]", keys_int64s=[1, 2],
       values_int64s=[1]),
    ml(ParseError, "LabelEncoder: keys of another type than the input", "LabelEncoder", "i64[2]", keys_strings=["a"],
       values_int64s=[1]),
    ml(ParseError, "LabelEncoder: keys must be given in one way", "LabelEncoder", "i64[2]", keys_strings=["a"],
       keys_int64s=[1], values_int64s=[1]),
    ml(ShapeError, "ZipMap takes [batch, keys]", "ZipMap", "f32[2,2,2]", classlabels_int64s=[0, 1]),
    ml(ShapeError, "LinearRegressor: attribute 'coefficients'", "LinearRegressor", FEATURES, coefficients=[1.0]),
    ml(ParseError, "LinearRegressor: attribute 'intercepts'", "LinearRegressor", FEATURES, coefficients=[1.0] * 3,
       intercepts=[1.0, 2.0]),
    ml(ParseError, "LinearRegressor: attribute 'post_transform'", "LinearRegressor", FEATURES, coefficients=[1.0] * 3,
       post_transform="SQUARE"),
    ml(ParseError, "LinearClassifier: attribute 'post_transform'", "LinearClassifier", FEATURES,
       coefficients=[1.0] * 6, classlabels_ints=[0, 1], post_transform="SQUARE", outputs=2),
    ml(ShapeError, "LinearClassifier: as many labels as rows of coefficients", "LinearClassifier", FEATURES,
       coefficients=[1.0] * 6, intercepts=[0.0, 0.0], classlabels_ints=[0, 1, 2], outputs=2),
    ml(ParseError, "SVMRegressor: attributes 'rho' and 'coefficients' must be given", "SVMRegressor", FEATURES,
       n_supports=1, support_vectors=[1.0] * 3),
    ml(ParseError, "SVMRegressor: attribute 'kernel_type'", "SVMRegressor", FEATURES, n_supports=1, rho=[0.0],
       coefficients=[1.0], support_vectors=[1.0] * 3, kernel_type="COSINE"),
    ml(ParseError, "SVMRegressor: attribute 'kernel_params'", "SVMRegressor", FEATURES, n_supports=1, rho=[0.0],
       coefficients=[1.0], support_vectors=[1.0] * 3, kernel_params=[1.0]),
    ml(ShapeError, "SVMRegressor: support vectors of another length", "SVMRegressor", FEATURES, n_supports=1, rho=[0.0],
       coefficients=[1.0], support_vectors=[1.0] * 4),
    ml(ParseError, "SVMRegressor: attribute 'support_vectors'", "SVMRegressor", FEATURES, n_supports=2, rho=[0.0],
       coefficients=[1.0] * 2, support_vectors=[1.0] * 3),
    ml(ParseError, "SVMRegressor: attribute 'coefficients'", "SVMRegressor", FEATURES, n_supports=2, rho=[0.0],
       coefficients=[1.0], support_vectors=[1.0] * 6),
    ml(ParseError, "TreeEnsembleRegressor: no tree", "TreeEnsembleRegressor", FEATURES, n_targets=1),
    ml(ParseError, "SVMClassifier: attribute 'prob_a'", "SVMClassifier", FEATURES, **(SVM | THREE), prob_a=[1.0, 1.0],
       prob_b=[0.0, 0.0], outputs=2),
    *(ml(ParseError, "SVMClassifier: attributes 'rho', 'coefficients', 'prob_a', 'prob_b'", "SVMClassifier", FEATURES,
         **(SVM | THREE | wrong), outputs=2)
      for wrong in ({"rho": None}, {"coefficients": None}, {"prob_a": [1.0] * 3}, {"vectors_per_class": [1, -1, 1]})),
    *(ml(ParseError, "SVMClassifier: attributes do not fit 3 classes", "SVMClassifier", FEATURES,
         **(SVM | THREE | wrong), outputs=2)
      for wrong in ({"vectors_per_class": [1, 2]}, {"rho": [0.0] * 2}, {"coefficients": [1.0] * 5})),
]  # fmt: skip


def ms(error: type[SmeltError], message: str, op: str, *inputs: Any, **attrs: Any) -> Row:
    return row(error, message, op, *inputs, domain=MS, **attrs)


BNB = {"K": 4, "N": 2, "block_size": 16, "quant_type": 1}
CONTRIB = [
    *(ms(ShapeError, "MatMulBnb4: attributes 'block_size', 'K' and 'N'", "MatMulBnb4", "f32[2,4]", "ui8[4]", "f32[1]",
         **(BNB | {name: 0})) for name in ("K", "N", "block_size")),
    ms(UnsupportedError, "MatMulBnb4: attribute 'quant_type'", "MatMulBnb4", "f32[2,4]", "ui8[4]", "f32[1]",
       **(BNB | {"quant_type": 2})),
    ms(UnsupportedError, "MatMulBnb4: attribute 'transB' = 0", "MatMulBnb4", "f32[2,4]", "ui8[4]", "f32[1]",
       transB=0, **BNB),
    ms(ShapeError, "QGemm multiplies matrices", "QGemm", "ui8[2]", np.float32(1), np.uint8(0), "ui8[2,2]",
     np.float32(1),
       np.uint8(0)),
    ms(ShapeError, "ExpandDims: 'axis' is one number", "ExpandDims", "f32[2]", i64(0, 1)),
    ms(ShapeError, "Unique takes a vector", "Unique", "f32[2,2]", outputs=3),
    ms(ParseError, "Attention: attribute 'qkv_hidden_sizes'", "Attention", "f32[1,2,4]", "f32[4,12]", "f32[12]",
       num_heads=2, qkv_hidden_sizes=[4, 4]),
    ms(ParseError, "MultiHeadAttention: input 'value' is missing", "MultiHeadAttention", "f32[1,2,4]", "f32[1,2,4]",
       num_heads=2),
    ms(ParseError, "MultiHeadAttention: 'past_key' and 'past_value' come together", "MultiHeadAttention",
       *["f32[1,2,4]"] * 3, None, None, None, "f32[1,2,3,2]", num_heads=2),
    row(ParseError, "Momentum: attribute 'mode'", "Momentum", "f32[]", "i64[]", *["f32[2]"] * 3, domain=TRAINING,
        alpha=0.9, beta=0.5, norm_coefficient=0.0, mode="fast", outputs=2),
    row(ParseError, "Momentum: the number of inputs", "Momentum", "f32[]", "i64[]", *["f32[2]"] * 4, domain=TRAINING,
        alpha=0.9, beta=0.5, norm_coefficient=0.0, mode="standard", outputs=2),
]  # fmt: skip

HEADS = {"num_heads": 2}
GROUPS = {"num_heads": 2, "kv_num_heads": 1}
STEP = ["f32[1,1,8]", "f32[1,1,4]", "f32[1,1,4]"]
PAST = ["f32[1,1,3,4]"] * 2
LSTM = ["f32[3,1,2]", "i8[1,2,8]", "i8[1,2,8]", None, None, None, None, None]
LSTM_SCALES = [f32(1), np.zeros(1, np.int8)]
BLOCKS = {"block_size": 16, "quantize_axis": 1}
ATTENTION = [
    ms(StaticError, "attention over heads whose size is not fixed", "MultiHeadAttention", "f32[1,2,2,3,K]",
       **HEADS),
    ms(ShapeError, "queries, keys and values of one size", "Attention", "f32[1,2,4]", "f32[4,10]", "f32[10]", **HEADS),
    *(ms(UnsupportedError, f"QAttention: attribute '{name}'", "QAttention", "ui8[1,2,4]", "ui8[4,12]", "f32[12]",
         np.float32(1), np.float32(1), **HEADS, **{name: 1}) for name in ("do_rotary", "past_present_share_buffer")),
    ms(ShapeError, "packed queries, keys and values", "MultiHeadAttention", "f32[1,2,2,2,4]", **HEADS),
    ms(ShapeError, "packed queries, keys and values", "MultiHeadAttention", "f32[1,2,8]", "f32[1,2,2,3,4]", **HEADS),
    ms(ParseError, "packed queries come with keys and values inside", "MultiHeadAttention", "f32[1,2,2,3,4]",
       "f32[1,2,8]", **HEADS),
    ms(ParseError, "packed keys come with values inside", "MultiHeadAttention", "f32[1,2,8]", "f32[1,2,2,2,4]",
       "f32[1,2,8]", **HEADS),
    ms(UnsupportedError, "inputs 'past_sequence_length' and 'cache_indirection'", "MultiHeadAttention",
       *["f32[1,2,8]"] * 3, *[None] * 5, "i32[1]", **HEADS),
    *(ms(ShapeError, "RotaryEmbedding: attribute 'rotary_embedding_dim'", "RotaryEmbedding", "f32[1,2,8]", "i64[1,2]",
         "f32[9,2]", "f32[9,2]", **attrs)
      for attrs in ({"rotary_embedding_dim": 6, "num_heads": 2}, {"rotary_embedding_dim": 4})),
    ms(StaticError, "RotaryEmbedding of heads whose number is not fixed", "RotaryEmbedding", "f32[1,2,K]",
       "i64[1,2]", "f32[9,2]", "f32[9,2]"),
    ms(ParseError, "GroupQueryAttention: inputs 'seqlens_k', 'past_key' and 'past_value'", "GroupQueryAttention", *STEP,
       PAST[0], None, "i32[1]", np.int32(1), **GROUPS),
    ms(ParseError, "GroupQueryAttention: inputs 'seqlens_k', 'past_key' and 'past_value'", "GroupQueryAttention", *STEP,
       **GROUPS),
    ms(ShapeError, "the number of heads does not divide the hidden size", "GroupQueryAttention", "f32[1,1,7]", None,
       None, None, None, "i32[1]", np.int32(1), **GROUPS),
    ms(ParseError, "GroupQueryAttention: inputs 'key' and 'value' come together", "GroupQueryAttention", *STEP[:2],
       None, None, None, "i32[1]", np.int32(1), **GROUPS),
    ms(ParseError, "GroupQueryAttention: input 'total_sequence_length' is missing", "GroupQueryAttention", *STEP, *PAST,
       "i32[1]", **GROUPS),
    ms(ShapeError, "GroupQueryAttention: 'total_sequence_length' is one number", "GroupQueryAttention", *STEP, *PAST,
       "i32[1]", np.array([4, 4], np.int32), **GROUPS),
    ms(ParseError, "'segment_ids' and 'segment_embedding' come together", "EmbedLayerNormalization", "i32[1,2]", None,
       "f32[9,4]", "f32[9,4]", "f32[2,4]", "f32[4]", "f32[4]", outputs=2),
]  # fmt: skip

QUANTISED = [
    *(ms(ParseError, f"input '{name}_scale' is missing", "QLinearAdd", "ui8[2]", np.float32(1), None, "ui8[2]",
         None if name == "B" else np.float32(1), None, None if name == "C" else np.float32(1)) for name in "BC"),
    *(ms(UnsupportedError, "GatherBlockQuantized: attribute 'block_size'", "GatherBlockQuantized", "i4[2,16]",
         "i64[1]", "f32[2,1]", **(BLOCKS | {"block_size": size})) for size in (-1, 0)),
    ms(ShapeError, "GatherBlockQuantized: scales have another rank than the data", "GatherBlockQuantized", "i4[2,16]",
       "i64[1]", "f32[2]", **BLOCKS),
    ms(ShapeError, "GatherBlockQuantized: floats have no zero points", "GatherBlockQuantized", "f8E4M3FN[2,16]",
       "i64[1]", "f32[2,1]", "f8E4M3FN[2,1]", **BLOCKS),
    ms(ShapeError, "packed numbers come in bytes", "MatMulNBits", "f32[2,16]", "i8[3,1,8]", "f32[3]", K=16, N=3,
       block_size=16),
    ms(ParseError, "inputs 'W_scale' and 'W_zero_point' are missing", "DynamicQuantizeLSTM", *LSTM, hidden_size=2),
    ms(ParseError, "inputs 'R_scale' and 'R_zero_point' are missing", "DynamicQuantizeLSTM", *LSTM, *LSTM_SCALES,
       f32(1), hidden_size=2),
    ms(ShapeError, "DynamicQuantizeLSTM: scales of 'W'", "DynamicQuantizeLSTM", *LSTM, f32(1, 2), LSTM_SCALES[1],
       *LSTM_SCALES, hidden_size=2),
    ms(ShapeError, "DynamicQuantizeLSTM: scales of 'R'", "DynamicQuantizeLSTM", *LSTM, *LSTM_SCALES, f32(1),
       np.zeros(3, np.int8), hidden_size=2),
]  # fmt: skip

OTHERS = [
    row(ParseError, "TensorScatter: attribute 'mode'", "TensorScatter", "f32[1,4,2]", "f32[1,1,2]", mode="up",
        version=24),
    row(ShapeError, "TensorScatter: axis must not be the batch's", "TensorScatter", "f32[1,4,2]", "f32[1,1,2]", axis=0,
        version=24),
    row(ParseError, "Cast: attribute 'round_mode'", "Cast", "f32[2]", to=24, round_mode="even", version=24),
    row(UnsupportedError, "BitCast between complex and other types", "BitCast", "f64[2]", to=14, version=26),
    row(ParseError, "ConstantOfShape: attribute 'value'", "ConstantOfShape", i64(2),
        value=numpy_helper.from_array(f32(1, 2))),
    row(ParseError, "Constant: no value", "Constant"),
    row(ShapeError, "MaxUnpool: 'output_shape' has the wrong length", "MaxUnpool", IMAGE, "i64[1,2,4,4]", i64(8, 8),
        kernel_shape=[2, 2]),
    row(UnsupportedError, "BatchNormalization for training before opset 14", "BatchNormalization", IMAGE,
        *["f32[2]"] * 4, version=9, outputs=2),
    row(ShapeError, "SplitToSequence: parts must not be empty", "SplitToSequence", "f32[4]", np.int64(0)),
    row(UnsupportedError, "SplitToSequence with too many elements", "SplitToSequence", "f32[4097]"),
    row(ShapeError, "SplitToSequence: the parts do not make up the whole", "SplitToSequence", "f32[4]", i64(5, -1)),
    row(ShapeError, "If: the condition must be one boolean", "If", np.array([True, True]),
        then_branch=helper.make_graph([], "t", [], []), else_branch=helper.make_graph([], "e", [], [])),
    row(StaticError, "DeformConv: a kernel whose size is not fixed", "DeformConv", IMAGE, "f32[3,2,K,3]",
        "f32[1,18,2,2]", version=22),
    row(ShapeError, "DeformConv: attribute 'kernel_shape'", "DeformConv", IMAGE, "f32[3,2,3,3]", "f32[1,18,2,2]",
        kernel_shape=[2, 3], version=22),
    row(ParseError, "'ngram_counts'", "TfIdfVectorizer", "i64[4]", mode="TF", min_gram_length=1, max_gram_length=1,
        max_skip_count=0, ngram_counts=[0, 2], ngram_indexes=[0], pool_int64s=[1]),
    *(row(UnsupportedError, "TfIdfVectorizer of this size", "TfIdfVectorizer", "i64[4]", mode="TF", min_gram_length=1,
          max_gram_length=1, max_skip_count=skips, ngram_counts=[0], ngram_indexes=[last], pool_int64s=[1])
      for skips, last in ((8192, 0), (0, 65536))),
]  # fmt: skip

WHERE_PYTHON_WOULD_FAIL = [
    row(ShapeError, "DepthToSpace: input 'input' has the wrong rank", "DepthToSpace", "f32[4,2]", blocksize=2),
    row(ShapeError, "Det: input 'X' has the wrong rank", "Det", "f32[3]"),
    row(ShapeError, "GroupNormalization: input 'X' has the wrong rank", "GroupNormalization", "f32[2]", "f32[2]",
        "f32[2]",
        num_groups=1),
    row(ShapeError, "LSTM: input 'X' has the wrong rank", "LSTM", "f32[3,2]", "f32[1,8,2]", "f32[1,8,2]"),
    row(ShapeError, "NonMaxSuppression: input 'scores' has the wrong rank", "NonMaxSuppression", "f32[1,2,4]",
        "f32[2]"),
    row(ShapeError, "RoiAlign: input 'rois' has the wrong rank", "RoiAlign", IMAGE, "f32[4]", i64(0)),
    row(ShapeError, "RoiAlign: rois and X must have one float type", "RoiAlign", IMAGE, "ui8[1,4]", i64(0)),
    row(UnsupportedError, "RoiAlign: an output of this size", "RoiAlign", IMAGE, "f32[1,4]", i64(0),
        output_height=1 << 40),
    row(ShapeError, "ReverseSequence: input 'sequence_lens' has the wrong rank", "ReverseSequence", "f32[2,3]",
        "i64[]"),
    row(ShapeError, "BatchNormalization: training needs a batch", "BatchNormalization", "f32[2]", *["f32[2]"] * 4,
        training_mode=1, outputs=3),
    row(ShapeError, "TopK: input 'K' must hold one number", "TopK", "f32[4]", i64(1, 2), outputs=2),
    row(ShapeError, "CumSum: input 'axis' must hold one number", "CumSum", "f32[4]", np.zeros(0, np.int64)),
    row(ShapeError, "input 'starts' must hold integers", "Slice", "f32[4]", f32(0.5), i64(2)),
    row(ShapeError, "Split: no sizes", "Split", "f32[4]", np.zeros(0, np.int64), outputs=2),
    row(ShapeError, "an index is out of range", "Gather", i64(1, 2, 3), i64(5, 1)),
    row(ShapeError, "attribute 'dilations' has the wrong length", "ConvTranspose", IMAGE, "f32[2,3,3,3]",
        dilations=[1]),
    row(ShapeError, "attribute 'output_shape' has the wrong length", "ConvTranspose", IMAGE, "f32[2,3,3,3]",
        output_shape=[8]),
    row(ShapeError, "attribute 'strides' has the wrong length", "MaxUnpool", IMAGE, "i64[1,2,4,4]", kernel_shape=[2, 2],
        strides=[1]),
    row(ShapeError, "Col2Im: impossible blocks", "Col2Im", "f32[1,4,4]", i64(3, 3), i64(0, 2)),
    row(ShapeError, "Col2Im: the blocks do not fit", "Col2Im", "f32[1,4,4]", i64(3, 3), i64(1 << 40, 1 << 40)),
    row(ParseError, "Celu: attribute 'alpha'", "Celu", "f32[2]", alpha=0.0),
    row(ParseError, "attribute 'p'", "LpPool", IMAGE, kernel_shape=[2, 2], p=0),
    row(ParseError, "Einsum: attribute 'equation'", "Einsum", "f32[2]", "f32[2]", equation="a"),
    row(ParseError, "'ngram_indexes' and 'weights'", "TfIdfVectorizer", "i64[4]", mode="TF", min_gram_length=1,
        max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0], pool_int64s=[1, 2]),
]  # fmt: skip

ROWS = [
    *ATTENTION,
    *QUANTISED,
    *OTHERS,
    *WHERE_PYTHON_WOULD_FAIL,
    *MOVES,
    *INDICES,
    *MATH,
    *WINDOWS,
    *SIGNALS,
    *TEXT,
    *LEARNT,
    *CONTRIB,
]


@pytest.mark.parametrize(
    ("error", "message", "op", "inputs", "attrs"), ROWS, ids=[f"{each[2]}-{each[1][-40:]}" for each in ROWS]
)
def test_refused(
    error: type[SmeltError], message: str, op: str, inputs: list[Any], attrs: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        read(one_node(tmp_path, op, inputs, **attrs))
    assert type(caught.value) is error
    assert op in str(caught.value)
    assert caught.value.remedy


TYPED = {
    (domain, name): (row, attribute)
    for (domain, name), rows in REGISTERED.items()
    for row in rows[:1]
    for attribute, hint in row.types.items()
    if hint != "Any" and row.since <= (3 if domain == ML else 26)
}


@pytest.mark.parametrize(("domain", "op"), TYPED, ids=[f"{domain}.{op}" for domain, op in TYPED])
def test_attributes_of_the_wrong_type_are_refused(domain: str, op: str, tmp_path: Path) -> None:
    row, attribute = TYPED[domain, op]
    hint = row.types[attribute]
    wrongs: list[Any] = [["a"] if hint == "str" else "a", [1.5] if hint == "float" else 1.5]
    for wrong in wrongs:
        attrs = {attribute: wrong}
        path = one_node(tmp_path, op, ["f32[2]"] * len(row.inputs), domain, 26, **attrs)
        with pytest.raises(ParseError, match=f"attribute '{attribute}' has the wrong type") as caught:
            read(path)
        assert caught.value.expected is not None
