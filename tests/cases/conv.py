"""Cases of `onnx2nn/ops/conv.py`."""

from tests.cases import case, f32

CASES = [
    case("Conv", f32(1, 3, 8, 8), f32(4, 3, 3, 3), pads=[1, 1, 1, 1], constant=(1,)),
    case("Conv", f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4), strides=[2, 1], constant=(1, 2)),
    case("Conv", f32(2, 3, 9), f32(4, 3, 3), f32(4), dilations=[2], pads=[0, 3], constant=(1, 2)),
    case("Conv", f32(2, 4, 9, 7), f32(4, 1, 3, 2), group=4, pads=[1, 0, 2, 1], constant=(1,)),
    case("Conv", f32(2, 4, 9, 7), f32(6, 2, 3, 3), group=2, pads=[-1, 0, 0, -1], constant=(1,)),
    case("Conv", f32(1, 2, 9, 8), f32(2, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2], constant=(1,)),
    case("Conv", f32(1, 2, 9, 8), f32(2, 2, 4, 2), auto_pad="SAME_LOWER", constant=(1,)),
    case("Conv", f32(1, 2, 9, 8), f32(2, 2, 1, 1), auto_pad="SAME_UPPER", strides=[2, 3], constant=(1,)),
    case("Conv", f32(1, 2, 10, 8), f32(2, 2, 2, 2), auto_pad="SAME_UPPER", strides=[3, 4], constant=(1,)),
    case("Conv", f32(1, 2, 9, 8), f32(2, 2, 3, 3), auto_pad="VALID", kernel_shape=[3, 3], constant=(1,)),
    case("Conv", f32(1, 2, 5, 5, 5), f32(3, 2, 3, 3, 3), f32(3), pads=[1] * 6, constant=(1, 2)),
    case("Conv", f32(1, 2, 5, 4, 5, 4), f32(4, 1, 3, 2, 2, 2), f32(4), group=2, strides=[1, 2, 1, 1], pads=[1] * 8),
    case("ConvTranspose", f32(1, 3, 5, 5), f32(3, 4, 3, 3), f32(4), strides=[2, 2], pads=[1, 1, 1, 1], constant=(1, 2)),
    case("ConvTranspose", f32(1, 4, 5, 5), f32(4, 2, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1], group=2, constant=(1,)),
    case("ConvTranspose", f32(1, 3, 5), f32(3, 4, 3), f32(4), strides=[3], output_padding=[2], constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 3, 3), f32(4), strides=[2, 3], pads=[0, 1, 2, 0], constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 3, 3), f32(4), strides=[2, 2], pads=[1, 0, 0, 0], dilations=[2, 1], constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 3, 3), f32(4), strides=[2, 2], auto_pad="SAME_UPPER", constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 4, 3), f32(4), strides=[1, 2], auto_pad="SAME_LOWER", constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 1, 2), f32(4), strides=[3, 2], auto_pad="SAME_UPPER", constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 3, 3), f32(4), strides=[2, 2], output_shape=[10, 12], constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 3, 3), f32(4), strides=[2, 2], output_shape=[10, 12], auto_pad="SAME_UPPER", constant=(1, 2)),
    case("ConvTranspose", f32(1, 3, 5, 6), f32(3, 4, 3, 3), f32(4), strides=[2, 2], output_shape=[11, 11]),
    case("ConvTranspose", f32(1, 2, 3, 4, 3), f32(2, 2, 2, 3, 2), f32(2), strides=[2, 2, 2], pads=[0, 1, 0, 0, 1, 0]),
]
