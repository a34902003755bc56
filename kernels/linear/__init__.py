"""Linear layers over weights laid out once for the way they are read."""

from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.selection import implementation


class PackedLinear:
    """x · weightᵀ + bias, its layout chosen when the weight is packed: panels for the CPU kernel, otherwise as it came.

    On the CPU the panels replace the weight: the caller drops it, and no second copy stays. Weights in bfloat16 stay so and give the
    bits that the same weights widened to float32 give. A row's result there doesn't depend on the rows around it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise ShapeError(f"linear: weight {tuple(weight.shape)}, bias {None if bias is None else tuple(bias.shape)}")
        self.out_features, self.in_features = weight.shape
        module = implementation("linear", weight.device, weight.dtype)
        self._linear = module.linear
        self._weight: Tensor = module.pack(weight)
        self._bias: Tensor | None = module.pack_bias(bias, weight)

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None = None) -> "PackedLinear":
        """weight: [out, in]; bias: [out]. Both are only read."""
        return cls(weight, bias)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weight and the bias hold."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out], x's type."""
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise ShapeError(f"linear: x {tuple(x.shape)} for {self.in_features} inputs")
        if not x.is_floating_point():
            raise DtypeError(f"linear: x is {x.dtype}")
        out: Tensor = self._linear(x, self._weight, self._bias, self.out_features)
        return out
