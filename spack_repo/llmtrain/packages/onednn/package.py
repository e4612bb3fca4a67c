from spack_repo.builtin.packages.onednn.package import Onednn as BuiltinOnednn

from spack.package import *


class Onednn(BuiltinOnednn):
    """oneDNN with its micro-kernels, an option of its build that Spack's own recipe does not have: without them llmtrain is
    several times slower. Releases are named by commit, as recipes for 3.x are missing there, too."""

    homepage = "https://uxlfoundation.github.io/oneDNN"
    git = "https://github.com/uxlfoundation/oneDNN.git"

    version("3.12.1", tag="v3.12.1", commit="c8c37fdbecb5aa4dcf5ea7e77fba0fd1a98bd16f", preferred=True)
    version("3.7.3", tag="v3.7.3", commit="34d53b436e652c2e315a66d65bf3c79940c2c530")

    variant("ukernel", default=True, description="Build the micro-kernels (experimental)", when="@3.6:")

    depends_on("cmake@3.13:", when="@3:", type="build")

    def cmake_args(self):
        return super().cmake_args() + [
            self.define_from_variant("DNNL_EXPERIMENTAL_UKERNEL", "ukernel"),
            self.define("DNNL_BUILD_EXAMPLES", False),
        ]
