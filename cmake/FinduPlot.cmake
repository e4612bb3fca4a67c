# Defines uPlot_SCRIPT, uPlot_STYLE and uPlot_LICENCE, files of the plotting script that pages of runs contain.
find_file(uPlot_SCRIPT uPlot.iife.min.js
  PATH_SUFFIXES share/nodejs/uplot/dist lib/node_modules/uplot/dist share/uplot/dist dist)
if(uPlot_SCRIPT)
  cmake_path(GET uPlot_SCRIPT PARENT_PATH folder)
  find_file(uPlot_STYLE uPlot.min.css PATHS ${folder} NO_DEFAULT_PATH)
  find_file(uPlot_LICENCE NAMES LICENSE copyright PATHS ${folder}/.. ${folder}/../../../doc/node-uplot NO_DEFAULT_PATH)
  file(READ ${uPlot_SCRIPT} banner LIMIT 200)
  if(banner MATCHES "uPlot \\(v([0-9.]+)\\)")
    set(uPlot_VERSION ${CMAKE_MATCH_1})
  endif()
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(uPlot REQUIRED_VARS uPlot_SCRIPT uPlot_STYLE uPlot_LICENCE VERSION_VAR uPlot_VERSION)
