"""Linear layers over weights laid out once for the way they are read."""

from torch import Tensor

from kernels.linear import reference


class PackedLinear:
    """x · weightᵀ + bias. The caller can drop the weight that was packed."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias

    @classmethod
    def pack(cls, weight: Tensor, bias: Tensor | None = None) -> "PackedLinear":
        """weight: [out, in]; bias: [out]."""
        return cls(weight, bias)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weight and the bias hold."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        return reference.linear(x, self._weight, self._bias)
