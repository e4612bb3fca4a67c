from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Inih(MesonPackage):
    """A small parser of INI files in C."""

    homepage = "https://github.com/benhoyt/inih"
    git = "https://github.com/benhoyt/inih.git"

    license("BSD-3-Clause")

    # The release that cmake/Fetch.cmake builds.
    version("62", commit="26254ee9de7681f8825433415443e7116ff24b98")

    depends_on("c", type="build")

    def meson_args(self):
        return ["-Ddistro_install=true", "-Dwith_INIReader=false"]
