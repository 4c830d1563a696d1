"""The bytes of an ONNX file: protobuf wire format, tensors."""
