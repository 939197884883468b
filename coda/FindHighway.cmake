# FindHighway: the SIMD library, as the target Highway::hwy. For the build, and installed for those
# who link the library.
find_path(HIGHWAY_INCLUDE_DIR hwy/highway.h)
find_library(HIGHWAY_LIBRARY hwy)
mark_as_advanced(HIGHWAY_INCLUDE_DIR HIGHWAY_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highway REQUIRED_VARS HIGHWAY_LIBRARY HIGHWAY_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "to install it: apt-get install libhwy-dev")

if(Highway_FOUND AND NOT TARGET Highway::hwy)
  add_library(Highway::hwy UNKNOWN IMPORTED)
  set_target_properties(Highway::hwy PROPERTIES
    IMPORTED_LOCATION "${HIGHWAY_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${HIGHWAY_INCLUDE_DIR}")
endif()
