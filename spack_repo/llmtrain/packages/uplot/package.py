from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Uplot(Package):
    """A small plotting script for pages."""

    homepage = "https://github.com/leeoniya/uPlot"
    git = "https://github.com/leeoniya/uPlot.git"

    license("MIT")

    # The release that cmake/Fetch.cmake fetches.
    version("1.6.32", commit="e995b061e9fc5476a6d862cd2fb2ebc7452ca012")

    def install(self, spec, prefix):
        install_tree("dist", prefix.share.uplot.dist)
        install("LICENSE", prefix.share.uplot)
