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

KERAS = "(tensorflow|keras)/keras_{}/tf2onnx"

X2ONEFLOW_TENSORFLOW = {
    "VGG": KERAS.format("(vgg16|VGG19)"),
    "ResNet": KERAS.format("(resnet50|ResNet1.*[0-9])(?<!V2)"),
    "ResNetV2": KERAS.format("(resnet50_v2|ResNet.*V2)"),
    "Xception": KERAS.format("xception"),
    "MobileNet V1": KERAS.format("mobilenet"),
    "MobileNet V2": KERAS.format("mobilenet_v2"),
    "MobileNet V3": KERAS.format("mobilenet_v3.*"),
    "DenseNet": KERAS.format("(densenet|DenseNet).*"),
    "EfficientNet": KERAS.format("(efficientnet|EfficientNet).*"),
    "Inception": KERAS.format("inception_v3"),
}
"""Models of TensorFlow in X2OneFlow's list."""

PADDLE = "(paddle/paddle|paddle_vision/paddle_vision)_{}/paddle2onnx"

X2ONEFLOW_PADDLE = {
    "AlexNet": PADDLE.format("alexnet"),
    "VGG": PADDLE.format("vgg.*"),
    "GoogLeNet": PADDLE.format("googlenet"),
    "ResNet": PADDLE.format("resnet[0-9].*"),
    "ResNeXt": PADDLE.format("resnext.*"),
    "SE_ResNeXt": PADDLE.format("se_resnext50"),
    "SENet": PADDLE.format("senet"),
    "MobileNet V1": PADDLE.format("mobilenet_v1"),
    "MobileNet V2": PADDLE.format("mobilenet_v2"),
    "MobileNet V3": PADDLE.format("mobilenet_v3.*"),
    "RegNet": PADDLE.format("regnet"),
    "DenseNet": PADDLE.format("densenet.*"),
    "EfficientNet": PADDLE.format("efficientnet_b0"),
    "Inception": PADDLE.format("inception.*"),
    "ShuffleNetV2": PADDLE.format("shufflenet_v2.*"),
    "SqueezeNet": PADDLE.format("squeezenet.*"),
    "DPN": PADDLE.format("dpn68"),
    "DarkNet": PADDLE.format("darknet53"),
    "GhostNet": PADDLE.format("ghostnet"),
    "RepVGG": PADDLE.format("repvgg"),
    "Xception": PADDLE.format("xception41"),
    "Xception-DeepLab": PADDLE.format("xception41_deeplab"),
    "Vision Transformer": PADDLE.format("vision_transformer"),
    "Res2Net": PADDLE.format("res2net50"),
    "UNet": PADDLE.format("unet.*"),
}
"""Models of PaddlePaddle in X2OneFlow's list."""

LISTS = {
    "onnx2pytorch": ONNX2PYTORCH,
    "X2OneFlow, PyTorch": X2ONEFLOW,
    "X2OneFlow, TensorFlow": X2ONEFLOW_TENSORFLOW,
    "X2OneFlow, PaddlePaddle": X2ONEFLOW_PADDLE,
    "torch.onnx": TORCH_ONNX,
}
"""Lists by title."""
