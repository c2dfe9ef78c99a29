"""The lists of the systems that this project succeeds, and the rows that show each of their models."""

from __future__ import annotations

TORCHVISION = "torchvision/{}/(torchscript|dynamo)"

ONNX2PYTORCH = {
    "zfnet512-9": "files/light_zfnet512/onnx",
    "resnet50-v2-7": "files/light_resnet50/onnx",
    "mobilenetv2-7": TORCHVISION.format("mobilenet_v2"),
    "mobilenetv2-1.0": TORCHVISION.format("mobilenet_v2"),
    "bvlcalexnet-9": "files/light_bvlc_alexnet/onnx",
    "googlenet-9": TORCHVISION.format("googlenet"),
    "squeezenet1.1-7": "files/light_squeezenet/onnx",
    "shufflenet-v2-10": TORCHVISION.format("shufflenet_v2_x1_0"),
    "inception-v1-9": "files/light_inception_v1/onnx",
    "inception-v2-9": "files/light_inception_v2/onnx",
    "vgg19-caffe2-9": "files/light_vgg19/onnx",
    "rcnn-ilsvrc13-9": TORCHVISION.format("alexnet"),
    "yolov5s": "definitions/yolov5s/.*",
}
"""Their file → the files that stand for it here: the same architecture, as the weights are not to be had."""

X2ONEFLOW = {
    "AlexNet": TORCHVISION.format("alexnet"),
    "VGG": TORCHVISION.format("vgg.*"),
    "GoogLeNet": TORCHVISION.format("googlenet"),
    "ResNet": TORCHVISION.format("resnet.*"),
    "ResNeXt": TORCHVISION.format("resnext.*"),
    "SENet": "definitions/senet/.*",
    "MobileNet V1": "definitions/mobilenet_v1/.*",
    "MobileNet V2": TORCHVISION.format("mobilenet_v2"),
    "MobileNet V3": TORCHVISION.format("mobilenet_v3.*"),
    "RegNet": TORCHVISION.format("regnet.*"),
    "DenseNet": TORCHVISION.format("densenet.*"),
    "EfficientNet": TORCHVISION.format("efficientnet.*"),
    "Inception": TORCHVISION.format("inception_v3"),
    "ShuffleNet V1": "definitions/shufflenet_v1/.*",
    "ShuffleNet V2": TORCHVISION.format("shufflenet_v2.*"),
    "SqueezeNet": TORCHVISION.format("squeezenet.*"),
}
"""Models of PyTorch in X2OneFlow's list."""

TORCH_ONNX = {
    "AlexNet": TORCHVISION.format("alexnet"),
    "DCGAN": "definitions/dcgan.*/.*",
    "DenseNet": TORCHVISION.format("densenet.*"),
    "Inception": TORCHVISION.format("inception_v3"),
    "ResNet": TORCHVISION.format("resnet.*"),
    "super-resolution": "definitions/super_resolution/.*",
    "VGG": TORCHVISION.format("vgg.*"),
    "word language model": "definitions/word_language_model/.*",
}
"""Models of torch.onnx's tests."""

LISTS = {
    "onnx2pytorch": ONNX2PYTORCH,
    "X2OneFlow, PyTorch": X2ONEFLOW,
    "torch.onnx": TORCH_ONNX,
}
"""Lists by title."""
