# cmfs in a CMake project: include(…/crates/cmfs-c/cmake/cmfs.cmake), then
#
#   cmfs_add_library(cmfs TARGET thumbv7em-none-eabi FEATURES summaries)    # a library to link to: target_link_libraries(app cmfs)
#   cmfs_add_image(rootfs DIRECTORY rootfs OUTPUT nand.img NVRAM nvram.img ARGUMENTS --size 64MiB --owner 0:0)
#
# The first needs cargo, with the Rust target (rustup target add …); the second the command bimetal, in PATH or BIMETAL. An image is
# made anew when a file or a directory is newer than it; a mode that changes does not make it so. CMake 3.17 or later.

function(cmfs_add_library name)
    cmake_parse_arguments(CMFS "" "TARGET" "FEATURES" ${ARGN})
    set(root "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..")
    set(directory "${CMAKE_CURRENT_BINARY_DIR}/${name}")
    set(arguments build --profile firmware -p cmfs-c --no-default-features --target-dir "${directory}")
    set(built "${directory}/firmware/libcmfs.a")
    if(CMFS_TARGET)
        list(APPEND arguments --target "${CMFS_TARGET}")
        set(built "${directory}/${CMFS_TARGET}/firmware/libcmfs.a")
    endif()
    if(CMFS_FEATURES)
        string(REPLACE ";" "," features "${CMFS_FEATURES}")
        list(APPEND arguments --features "${features}")
    endif()
    add_custom_target(${name}_cargo
        COMMAND cargo ${arguments}
        WORKING_DIRECTORY "${root}"
        BYPRODUCTS "${built}"
        VERBATIM)
    add_library(${name} STATIC IMPORTED GLOBAL)
    set_target_properties(${name} PROPERTIES
        IMPORTED_LOCATION "${built}"
        INTERFACE_INCLUDE_DIRECTORIES "${root}/include")
    add_dependencies(${name} ${name}_cargo)
endfunction()

function(cmfs_add_image name)
    cmake_parse_arguments(CMFS "" "DIRECTORY;OUTPUT;NVRAM" "ARGUMENTS" ${ARGN})
    if(NOT CMFS_DIRECTORY OR NOT CMFS_OUTPUT)
        message(FATAL_ERROR "cmfs_add_image(${name}): DIRECTORY and OUTPUT are needed")
    endif()
    if(NOT BIMETAL)
        find_program(BIMETAL bimetal REQUIRED)
    endif()
    get_filename_component(from "${CMFS_DIRECTORY}" ABSOLUTE)
    get_filename_component(to "${CMFS_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
    set(memory)
    set(made "${to}")
    if(CMFS_NVRAM)
        get_filename_component(nvram "${CMFS_NVRAM}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
        set(memory --nvram "${nvram}")
        list(APPEND made "${nvram}")
    endif()
    # A name that goes makes its directory newer; so does a link that is changed, which may lead nowhere here.
    file(GLOB_RECURSE found LIST_DIRECTORIES true CONFIGURE_DEPENDS "${from}/*")
    set(sources "${from}")
    foreach(path IN LISTS found)
        if(NOT IS_SYMLINK "${path}")
            list(APPEND sources "${path}")
        endif()
    endforeach()
    # The same files give the same image, whoever builds it.
    add_custom_command(
        OUTPUT ${made}
        COMMAND "${BIMETAL}" mkimage "${from}" --nand "${to}" ${memory} --force --seed 0 ${CMFS_ARGUMENTS}
        DEPENDS ${sources}
        VERBATIM)
    add_custom_target(${name} ALL DEPENDS ${made})
endfunction()
