# These are the functions and variables, except checks, that LBNL NHC's own scripts provide for a
# site's. bash reads this file before the scripts of $INCDIR, or when a check line first calls one
# of the functions (see __nhc_library in prelude.sh).

: "${PASSWD_DATA_SRC:=/etc/passwd}" "${LOGIN_DEFS_SRC:=/etc/login.defs}"
PWUID_USER=() PWUID_GID=() PWUID_GECOS=() PWUID_HOME=() PWUID_SHELL=()
PWDATA_UIDS=() PWDATA_USERS=() PWDATA_SYSTEM_USERS=() PWDATA_USERID_MAP=''

# Arrays by name. A nameref must not have the name that it refers to, hence the prefix.

# array_push ARRAY ITEM...: add at the end.
array_push() {
    local -n __nhc_to="$1"
    __nhc_to+=("${@:2}")
}

# array_pop ARRAY [COUNT [VARIABLE]]: take COUNT items (1) off the end.
array_pop() {
    local -n __nhc_to="$1"
    local __nhc_left=$((${#__nhc_to[*]} - ${2:-1})) IFS=$' \t\n'
    ((__nhc_left > 0)) || __nhc_left=0
    local __nhc_taken="${__nhc_to[*]:__nhc_left}"
    __nhc_to=("${__nhc_to[@]:0:__nhc_left}")
    [[ -z ${3-} ]] || printf -v "$3" %s "$__nhc_taken"
}

# array_unshift ARRAY ITEM...: add at the beginning.
array_unshift() {
    local -n __nhc_to="$1"
    __nhc_to=("${@:2}" "${__nhc_to[@]}")
}

# array_shift ARRAY [COUNT]: take COUNT items (1) off the beginning.
array_shift() {
    local -n __nhc_to="$1"
    __nhc_to=("${__nhc_to[@]:${2:-1}}")
}

# array_split SEPARATORS TEXT ARRAY: as in LBNL NHC, bash parses TEXT as words, so blanks split it,
# and SEPARATORS split only the expansions of variables.
array_split() {
    local IFS="$1"
    eval "$3=( $2 )"
}

# array_join SEPARATOR ARRAY [VARIABLE]
array_join() {
    local -n __nhc_from="$2"
    local __nhc_text="${__nhc_from[0]-}" __nhc_item
    for __nhc_item in "${__nhc_from[@]:1}"; do __nhc_text+="$1$__nhc_item"; done
    if [[ -n ${3-} ]]; then printf -v "$3" %s "$__nhc_text"; else echo "$__nhc_text"; fi
}

# Sizes and counts: converts NUMBER[kmgtpe] to a number of kB or of things, and back. A word without
# a unit stays as it is (90%). A unit behind anything but a number dies; LBNL NHC would continue with
# an empty word.

# __nhc_number FUNCTION WORD BASE UNIT: NUMBER times BASE for each unit above UNIT,
# in the caller's __nhc_word.
__nhc_number() {
    local __nhc_unit __nhc_power=0
    __nhc_word="$2"
    case $__nhc_word in
        *[kK]) __nhc_power=1 ;;
        *[mM]) __nhc_power=2 ;;
        *[gG]) __nhc_power=3 ;;
        *[tT]) __nhc_power=4 ;;
        *[pP]) __nhc_power=5 ;;
        *[eE]) __nhc_power=6 ;;
    esac
    ((__nhc_power == 0)) && return 0
    __nhc_word="${__nhc_word%?}"
    if ! [[ $__nhc_word =~ ^[-+]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$ ]]; then
        die 1 "$1:  Invalid number \"$2\""
        return 1
    fi
    for ((__nhc_unit = $4; __nhc_unit < __nhc_power; __nhc_unit++)); do __nhc_word=$((__nhc_word * $3)); done
}

# nhc_common_parse_size SIZE VARIABLE [BASE]: kB.
nhc_common_parse_size() {
    local __nhc_word=''
    if [[ -n $1 ]]; then __nhc_number "$FUNCNAME" "${1%[bB]}" "${3:-1024}" 1 || return; fi
    [[ -z ${2-} ]] || printf -v "$2" %s "$__nhc_word"
}

# nhc_common_parse_count COUNT VARIABLE [BASE]
nhc_common_parse_count() {
    local __nhc_word=''
    if [[ -n $1 ]]; then __nhc_number "$FUNCNAME" "$1" "${3:-1000}" 0 || return; fi
    [[ -z ${2-} ]] || printf -v "$2" %s "$__nhc_word"
}

# __nhc_unparse NUMBER BASE UNITS: uses the largest unit with an error of at most a tenth.
__nhc_unparse() {
    local -n __nhc_units="$3"
    local __nhc_n="$1" __nhc_i __nhc_off
    __nhc_lost=0
    for ((__nhc_i = 0; __nhc_n >= $2 && __nhc_i < ${#__nhc_units[*]} - 1; __nhc_i++)); do
        __nhc_off=$((__nhc_n % $2 * 100 / $2))
        (((__nhc_off > 50 ? 100 - __nhc_off : __nhc_off) <= 10)) || break
        __nhc_lost=$((__nhc_n % $2)) __nhc_n=$((__nhc_n / $2))
    done
    if ((__nhc_lost >= $2 / 2)); then
        __nhc_n=$((__nhc_n + 1)) __nhc_lost=$(($2 - __nhc_lost))
    fi
    __nhc_word="$__nhc_n${__nhc_units[__nhc_i]}"
}
__nhc_size_units=(kB MB GB TB PB EB)
__nhc_count_units=('' k M G T P E)

# __nhc_unparse_to FUNCTION UNITS DEFAULT-BASE NUMBER VARIABLE [BASE [VARIABLE]]
__nhc_unparse_to() {
    local __nhc_word='' __nhc_lost=0 __nhc_base="${6:-$3}"
    if [[ $__nhc_base -eq 0 ]]; then
        die 1 "$1:  Syntax error:  Multiplier factor is 0"
        return 1
    fi
    [[ -z $4 ]] || __nhc_unparse "$4" "$__nhc_base" "$2"
    [[ -z ${5-} ]] || printf -v "$5" %s "$__nhc_word"
    [[ -z ${7-} ]] || printf -v "$7" %s "$__nhc_lost"
}

# nhc_common_unparse_size KB VARIABLE [BASE [VARIABLE FOR THE ROUNDING ERROR]]
nhc_common_unparse_size() { __nhc_unparse_to "$FUNCNAME" __nhc_size_units 1024 "$@"; }
nhc_common_unparse_count() { __nhc_unparse_to "$FUNCNAME" __nhc_count_units 1000 "$@"; }

# Accounts.

# nhc_common_parse_passwd_entry LINE [VARIABLE FOR THE UID]
nhc_common_parse_passwd_entry() {
    local -a __nhc_f
    local __nhc_uid
    IFS=: read -r -a __nhc_f <<<"$1"
    __nhc_uid="${__nhc_f[2]-}"
    [[ $__nhc_uid =~ ^[0-9]+$ ]] || return 0
    PWDATA_UIDS+=("$__nhc_uid")
    PWDATA_USERS+=("${__nhc_f[0]}")
    PWUID_USER[__nhc_uid]="${__nhc_f[0]}"
    PWUID_GID[__nhc_uid]="${__nhc_f[3]-}"
    PWUID_GECOS[__nhc_uid]="${__nhc_f[4]-}"
    PWUID_HOME[__nhc_uid]="${__nhc_f[5]-}"
    PWUID_SHELL[__nhc_uid]="${__nhc_f[6]-}"
    ((__nhc_uid >= 100)) || PWDATA_SYSTEM_USERS+=("${__nhc_f[0]}")
    PWDATA_USERID_MAP+="||${__nhc_f[0]}:$__nhc_uid"
    [[ -z ${2-} ]] || printf -v "$2" %s "$__nhc_uid"
}

nhc_common_load_passwd() {
    local __nhc_line
    while IFS= read -r __nhc_line || [[ -n $__nhc_line ]]; do
        nhc_common_parse_passwd_entry "$__nhc_line"
    done <"$PASSWD_DATA_SRC"
}

# nhc_common_get_uid USER VARIABLE: its uid; a number stands for itself.
nhc_common_get_uid() {
    local __nhc_found="$1"
    if ! [[ $1 =~ ^[0-9]+$ ]]; then
        [[ -n $PWDATA_USERID_MAP ]] || nhc_common_load_passwd
        __nhc_found=''
        if [[ "$PWDATA_USERID_MAP||" == *"||$1:"* ]]; then
            __nhc_found="${PWDATA_USERID_MAP#*"||$1:"}"
            __nhc_found="${__nhc_found%%||*}"
        else
            nhc_common_parse_passwd_entry "$(getent passwd "$1")" __nhc_found
        fi
    fi
    dbg "Got UID $__nhc_found for user $1"
    printf -v "$2" %s "$__nhc_found"
}

# nhc_common_get_userid UID VARIABLE: its name; a name stands for itself.
nhc_common_get_userid() {
    local __nhc_found="$1"
    if ! [[ $1 =~ [^0-9] ]]; then
        [[ -n $PWDATA_USERID_MAP ]] || nhc_common_load_passwd
        [[ -n ${PWUID_USER[$1]-} ]] || nhc_common_parse_passwd_entry "$(getent passwd "$1")"
        __nhc_found="${PWUID_USER[$1]-}"
    fi
    dbg "Got userid $__nhc_found for UID $1"
    printf -v "$2" %s "$__nhc_found" # which may be an item of an array
}

# nhc_common_get_max_sys_uid sets MAX_SYS_UID from login.defs: SYS_UID_MAX, else the
# uid below UID_MIN, as parseMaxSystemUID in checks/probe reads it.
nhc_common_get_max_sys_uid() {
    local __nhc_line __nhc_least='' __nhc_last='' IFS=$' \t\n'
    MAX_SYS_UID="${MAX_SYS_UID:-99}"
    [[ -e $LOGIN_DEFS_SRC ]] || return 1
    # shellcheck disable=SC2162 # LBNL NHC reads its backslashes, too
    while read __nhc_line || [[ -n $__nhc_line ]]; do
        case $__nhc_line in
            UID_MIN*) __nhc_least="${__nhc_line//[^0-9]/}" ;;
            SYS_UID_MAX*)
                __nhc_last="${__nhc_line//[^0-9]/}"
                break
                ;;
        esac
    done <"$LOGIN_DEFS_SRC"
    if [[ -n $__nhc_last ]]; then
        MAX_SYS_UID=$((__nhc_last))
    elif [[ -n $__nhc_least ]]; then
        MAX_SYS_UID=$((__nhc_least - 1))
    fi
    ((MAX_SYS_UID > 0)) || MAX_SYS_UID=99
}

# nhc_common_get_unix_time makes SECONDS count from the epoch.
nhc_common_get_unix_time() {
    ((SECONDS < 946684800)) || return 0
    ELAPSED_SECONDS=$SECONDS
    printf -v SECONDS '%(%s)T' -1
    NHC_START_TS=$((SECONDS - ELAPSED_SECONDS))
}

# nhc_cmd_with_timeout SECONDS COMMAND...: SIGTERM when the time is up, SIGKILL a second later.
nhc_cmd_with_timeout() {
    local __nhc_after="$1"
    shift
    timeout --foreground -k 1 "$__nhc_after" "$@"
    local __nhc_status=$?
    ((__nhc_status != 124)) || __nhc_status=143 # as bash counts SIGTERM
    return "$__nhc_status"
}

# str_clean [-12OclmtwC:W:o:s:] [TEXT]: trim and merge blanks, cut comments off; to
# standard output (-O), into a variable (-o), or of a variable into itself (-s). As
# in LBNL NHC's development version: one blank is trimmed, and a comment begins with #.
str_clean() {
    local OPTIND=1 OPTARG __nhc_o __nhc_ws=$' \t\f\n\r\v' __nhc_to='' __nhc_from='' __nhc_do='' __nhc_text
    while getopts :12C:OW:clmo:s:tw __nhc_o; do
        case $__nhc_o in
            1) __nhc_ws=' ' ;;
            2) __nhc_ws=$' \t' ;;
            W) __nhc_ws="$OPTARG" ;;
            o) __nhc_to="$OPTARG" ;;
            s) __nhc_from="$OPTARG" ;;
            w) __nhc_do+=lt ;;
            [Oclmt]) __nhc_do+="$__nhc_o" ;;
            C) ;;
            *)
                if [[ $__nhc_o == : ]]; then __nhc_text="Option -$OPTARG requires an argument."; else __nhc_text="Invalid option:  -$OPTARG"; fi
                die 1 "$FUNCNAME:  $__nhc_text"
                return 1
                ;;
        esac
    done
    shift $((OPTIND - 1))
    __nhc_text="${1-}"
    if [[ -n $__nhc_from ]]; then __nhc_text="${!__nhc_from-}" __nhc_to="$__nhc_from"; fi
    [[ $__nhc_do != *l* ]] || __nhc_text="${__nhc_text#["$__nhc_ws"]}"
    [[ $__nhc_do != *t* ]] || __nhc_text="${__nhc_text%["$__nhc_ws"]}"
    [[ $__nhc_do != *c* ]] || __nhc_text="${__nhc_text%%#*}"
    if [[ $__nhc_do == *m* ]]; then
        local __nhc_extglob=0
        shopt -q extglob || __nhc_extglob=1
        shopt -s extglob
        __nhc_text="${__nhc_text//+(["$__nhc_ws"])/ }"
        ((__nhc_extglob == 0)) || shopt -u extglob
    fi
    [[ $__nhc_do != *O* ]] || echo "$__nhc_text"
    [[ -z $__nhc_to ]] || printf -v "$__nhc_to" %s "$__nhc_text"
}

# These are parts of LBNL NHC's program itself, as far as a script can use them.

# nhcmain_finish ends the run as a success that neither drains nor resumes the node.
nhcmain_finish() {
    syslog_flush
    vlog "Node Health Check completed successfully ($((SECONDS - ${NHC_START_TS:-0}))s)."
    exit 0
}

# nhcmain_mark_online resumes the node now, by LBNL NHC's rule.
nhcmain_mark_online() {
    [[ -n $NHC_RM && $MARK_OFFLINE -eq 1 && ${NHC_MODE-$MODE} != observe ]] || return 1
    __nhc_helper '' "$ONLINE_NODE" "$HOSTNAME"
}

# kill_watchdog: does nothing, because another process enforces the deadline of a run.
kill_watchdog() {
    dbg "$FUNCNAME:  Watchdog PID is ${WATCHDOG_PID:-0}."
    return 0
}

toggle_debug_mode() {
    if [[ ${DEBUG:-0} -eq 0 ]]; then
        DEBUG=1
        dbg "NHC DEBUG mode turned on via SIGUSR2."
    else
        dbg "NHC DEBUG mode turned off via SIGUSR2."
        DEBUG=0
    fi
}

toggle_bash_tracing() { if [[ $- == *x* ]]; then set +x; else set -x; fi; }

# bash_stack_trace prints the callers of its caller, with their arguments under "shopt -s extdebug".
# It omits the functions that run check lines.
bash_stack_trace() {
    local __nhc_frame __nhc_args __nhc_arg __nhc_i __nhc_at="${BASH_ARGC[0]:-0}"
    for ((__nhc_frame = 1; __nhc_frame < ${#FUNCNAME[*]}; __nhc_frame++)); do
        __nhc_args=''
        if shopt -q extdebug; then
            for ((__nhc_i = __nhc_at + ${BASH_ARGC[__nhc_frame]:-0} - 1; __nhc_i >= __nhc_at; __nhc_i--)); do
                __nhc_arg="${BASH_ARGV[__nhc_i]}"
                [[ $__nhc_arg != *[[:space:]]* ]] || __nhc_arg="\"${__nhc_arg//\"/\\\"}\""
                __nhc_args+="${__nhc_args:+, }$__nhc_arg"
            done
            ((__nhc_at += ${BASH_ARGC[__nhc_frame]:-0}))
        fi
        [[ ${FUNCNAME[__nhc_frame]} != __nhc_* && ${BASH_SOURCE[__nhc_frame]-} != /proc/self/fd/* ]] || continue
        echo "[BT]:  ${FUNCNAME[__nhc_frame]}($__nhc_args) at ${BASH_SOURCE[__nhc_frame]:-<UNK-FILE>}:${BASH_LINENO[__nhc_frame - 1]:-<UNK-LINE>}"
    done
}

# nhc_load_conf FILE adds the lines of a file for this host to CHECKS. If a check line calls it,
# they run after that line.
nhc_load_conf() {
    local __nhc_line __nhc_target __nhc_check IFS=$' \t\n'
    dbg "Loading configuration from $1."
    # shellcheck disable=SC2162 # as nhc.conf is read
    while read __nhc_line || [[ -n $__nhc_line ]]; do
        __nhc_line="${__nhc_line%$'\r'}"
        [[ $__nhc_line == *'||'* ]] || continue
        # shellcheck disable=SC2162
        read -r __nhc_target <<<"${__nhc_line%%'||'*}"
        read -r __nhc_check <<<"${__nhc_line#*'||'}"
        [[ -n $__nhc_target && $__nhc_target != '#'* && -n $__nhc_check ]] || continue
        if mcheck "$HOSTNAME" "$__nhc_target"; then
            dbg "Host match check:  \"$HOSTNAME\" matches \"$__nhc_target\" for check:  $__nhc_check"
            CHECKS+=("$__nhc_check")
        else
            dbg "Host match check:  \"$HOSTNAME\" failed to match \"$__nhc_target\" for check:  $__nhc_check"
        fi
    done <"$1"
}
