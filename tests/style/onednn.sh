#!/usr/bin/env bash
# onednn.sh ROOT BUILD_FOLDER: the callers of oneDNN's experimental micro-kernels compile with every form of their
# interface that cmake/Dependencies.cmake accepts, and without them. One library is installed; the forms of the others
# are declared here.
set -euo pipefail
cd "$1"
source_file=kernels/host/product/gemm_tile.cpp
command=$(sed -nE 's/^ *"command": "(.*)",?$/\1/p' "$2/compile_commands.json" | grep -F -- "$source_file" | head -n 1 |
  sed -E 's/\\(["\\])/\1/g') # JSON's escapes
[[ -n $command ]] || { echo "nothing compiles $source_file in $2" && exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/oneapi/dnnl"

# Compiles as with a oneDNN 3.$1 that is asked for the layout of panels with the parameters $2; $3: more options.
compiles() {
  cat >"$work/oneapi/dnnl/dnnl_ukernel.h" <<END
#pragma once
#include <oneapi/dnnl/dnnl.h>
#undef DNNL_VERSION_MAJOR
#undef DNNL_VERSION_MINOR
#define DNNL_VERSION_MAJOR 3
#define DNNL_VERSION_MINOR $1
#if $1 > 0
typedef struct dnnl_brgemm* dnnl_brgemm_t;
typedef const struct dnnl_brgemm* const_dnnl_brgemm_t;
typedef enum { dnnl_pack_type_undef, dnnl_pack_type_no_trans, dnnl_pack_type_trans, dnnl_pack_type_pack32 } dnnl_pack_type_t;
extern "C" {
dnnl_status_t dnnl_brgemm_create(dnnl_brgemm_t*, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t,
                                 dnnl_dim_t, dnnl_data_type_t, dnnl_data_type_t, dnnl_data_type_t);
dnnl_status_t dnnl_brgemm_destroy(dnnl_brgemm_t);
dnnl_status_t dnnl_brgemm_set_add_C(dnnl_brgemm_t, int);
dnnl_status_t dnnl_brgemm_finalize(dnnl_brgemm_t);
dnnl_status_t dnnl_brgemm_generate(dnnl_brgemm_t);
dnnl_status_t dnnl_brgemm_get_B_pack_type($2);
dnnl_status_t dnnl_brgemm_get_scratchpad_size(const_dnnl_brgemm_t, size_t*);
dnnl_status_t dnnl_brgemm_set_hw_context(const_dnnl_brgemm_t);
dnnl_status_t dnnl_brgemm_release_hw_context();
dnnl_status_t dnnl_brgemm_execute(const_dnnl_brgemm_t, const void*, const void*, const dnnl_dim_t*, void*, void*);
}
#endif
END
  eval "$command -I$work -fsyntax-only ${3:-} -o /dev/null" >"$work/output" 2>&1
}
expect_compiles() { compiles "$@" || { cat "$work/output" && echo "it does not compile with $*" && exit 1; }; }

with=-DLLMTRAIN_ONEDNN_UKERNELS
of_kernel="const_dnnl_brgemm_t, dnnl_pack_type_t*"
of_types="dnnl_pack_type_t*, dnnl_data_type_t, dnnl_data_type_t"
expect_compiles 6 "$of_kernel" $with
expect_compiles 8 "$of_types" $with
expect_compiles 0 "" -ULLMTRAIN_ONEDNN_UKERNELS
! compiles 6 "$of_types" $with || { echo "the control compiles: 3.6 with the interface of 3.8" && exit 1; }
! compiles 0 "" $with || { echo "the control compiles: micro-kernels that are not declared" && exit 1; }
echo "$source_file compiles with 3 forms of oneDNN"
