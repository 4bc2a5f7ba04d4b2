#Fails when LIBRARY exports a symbol that is not batten_ *.
execute_process(COMMAND "${NM}" - D-- defined - only-- format = posix
                "${LIBRARY}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE
           "\n$"
           "" symbols "${symbols}") string(REPLACE
                                           "\n"
                                           ";" symbols "${symbols}") list(LENGTH symbols all)
        list(FILTER symbols EXCLUDE REGEX "^batten_[a-z_]+ T ") if (symbols)
            list(JOIN symbols "\n  " text)
                message(FATAL_ERROR "exported, but not of the C interface:\n  ${text}")
                    endif() if (all LESS 10)
                        message(FATAL_ERROR
                                "only ${all} functions are exported; is the export list right?")
                            endif() message("${all} functions exported")
