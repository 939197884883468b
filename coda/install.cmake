# cmake --install build --prefix P: the library, its public headers and the package `coda`, whose
# target is coda::coda. docs/embedding.md is the guide.

# What a program that embeds the library may include. They include only one another; whatever else
# is in the folders is the library's own.
set(public_headers
  core/allocator.h core/dtype.h core/error.h core/npy.h core/safetensors.h core/tensor.h
  program/builder.h program/dims.h program/library.h program/ops.def program/program.h
  program/schedule.h program/text.h
  check/bind.h check/check.h
  backend/backend.h backend/execute.h backend/memory.h
  rewrite/grad.h rewrite/ledger.h rewrite/partition.h rewrite/retype.h rewrite/rewrite.h
  rewrite/stack.h
  reference/reference.h reference/verify.h
  cpu/cpu.h
  cuda/bundle.h cuda/choose.h cuda/cuda.h cuda/plan.h)

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/coda")

install(TARGETS coda EXPORT coda ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
# Line tables name the files of the machine that built them.
install(CODE "
  execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:coda>\"
    COMMAND_ERROR_IS_FATAL ANY)")
foreach(header IN LISTS public_headers)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/coda/${folder}")
endforeach()

install(EXPORT coda NAMESPACE coda:: FILE coda-targets.cmake DESTINATION "${package}")
configure_package_config_file(coda-config.cmake.in
  "${PROJECT_BINARY_DIR}/package/coda-config.cmake" INSTALL_DESTINATION "${package}"
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/coda-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/package/coda-config.cmake"
  "${PROJECT_BINARY_DIR}/package/coda-config-version.cmake"
  "${CMAKE_CURRENT_SOURCE_DIR}/FindHighway.cmake"
  DESTINATION "${package}")
