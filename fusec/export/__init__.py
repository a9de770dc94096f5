"""Graphs for other programs' viewers: ONNX (Netron) and Model Explorer."""
