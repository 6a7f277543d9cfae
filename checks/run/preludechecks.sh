# This is the second half of prelude.sh: matching as in LBNL NHC's mcheck, and the native checks as
# functions.

mcheck_regexp() {
    if [[ $1 =~ $2 ]]; then
        dbg "Regexp match check (internal):  $1 matches /$2/"
        return 0
    fi
    dbg "Regexp match check (internal):  $1 does not match /$2/"
    return 1
}
mcheck_glob() {
    if [[ $1 == $2 ]]; then
        dbg "Glob match check:  $1 matches $2"
        return 0
    fi
    dbg "Glob match check:  $1 does not match $2"
    return 1
}

# The code that reads nhc.conf evaluates a range list, too.
mcheck_range() {
    if __nhc_ask match "$1" "{$2}"; then
        dbg "mcheck_range:  Found $1 in $2."
        return 0
    fi
    dbg "mcheck_range:  $1 NOT found in $2."
    return 1
}

mcheck_external() {
    local __nhc_cmd="${NHC_MCHECK_COMMAND[$1]}"
    __nhc_cmd="${__nhc_cmd//%h/\"$2\"}"
    __nhc_cmd="${__nhc_cmd//%m/\"$3\"}"
    (eval $__nhc_cmd)
}

# mcheck STRING EXPRESSION: one leading ! negates; /regex/, {range}, external, glob.
mcheck() {
    local __nhc_s="$1" __nhc_m="$2" __nhc_no=0 __nhc_i __nhc_rc
    if [[ ${__nhc_m:0:1} == '!' ]]; then __nhc_no=1 __nhc_m="${__nhc_m:1}"; fi
    local __nhc_a="${__nhc_m:0:1}" __nhc_z="${__nhc_m: -1:1}" __nhc_in=''
    ((${#__nhc_m} > 1)) && __nhc_in="${__nhc_m:1:${#__nhc_m}-2}"
    if [[ $__nhc_a == / && $__nhc_z == / ]]; then
        mcheck_regexp "$__nhc_s" "$__nhc_in"
        __nhc_rc=$?
    elif [[ $__nhc_a == '{' && $__nhc_z == '}' ]]; then
        mcheck_range "$__nhc_s" "$__nhc_in"
        __nhc_rc=$?
    else
        for ((__nhc_i = 0; __nhc_i < ${#NHC_MCHECK_DELIM[*]}; __nhc_i++)); do
            if [[ $__nhc_a == "${NHC_MCHECK_DELIM[__nhc_i]:0:1}" && $__nhc_z == "${NHC_MCHECK_DELIM[__nhc_i]: -1:1}" ]]; then
                mcheck_external "$__nhc_i" "$__nhc_s" "$__nhc_in"
                return $((($? != 0) ^ __nhc_no))
            fi
        done
        mcheck_glob "$__nhc_s" "$__nhc_m"
        __nhc_rc=$?
    fi
    return $(((__nhc_rc != 0) ^ __nhc_no))
}

# __nhc_native NAME...: checks of this program as functions.
declare -A __nhc_in_shell=([check_cmd_status]=__nhc_cmd_status [check_ps_unauth_users]=__nhc_unauth_users)
__nhc_native() {
    local __nhc_n
    for __nhc_n; do eval "$__nhc_n() { ${__nhc_in_shell[$__nhc_n]-__nhc_ask native $__nhc_n} \"\$@\"; }"; done
}

# __nhc_behind COUNT: runs, after a good check line, the lines of CHECKS after COUNT, which
# nhc_load_conf has added.
__nhc_behind() {
    local __nhc_line="$CHECK" __nhc_i __nhc_status
    for ((__nhc_i = $1; __nhc_i < ${#CHECKS[*]}; __nhc_i++)); do
        CHECK="${CHECKS[__nhc_i]}" CHECK_DIED=0
        vlog "Running check:  \"$CHECK\""
        __nhc_one
        __nhc_status=$?
        ((__nhc_status == 0 || CHECK_DIED)) && continue
        log "Node Health Check failed.  Check $CHECK returned $__nhc_status"
        die "$__nhc_status" "Check $CHECK returned $__nhc_status"
    done
    CHECK="$__nhc_line"
}
__nhc_one() { . /proc/self/fd/243; }

# check_ps_unauth_users lets the site decide if a line or a script has put users into JOBUSERS, or has a
# function for it: nhc_job_user_auth, which calls nhc_job_find_users. Users whom the function has not been
# asked about, because they have come since, wait for the next run.
__nhc_unauth_users() {
    local IFS=$' \t\n' __nhc_pid __nhc_who
    local -a __nhc_allowed=()
    local -A __nhc_seen=()
    if [[ -n ${__nhc_site_users-} ]]; then
        nhc_ps_gather_data
        for __nhc_pid in ${PS_PROCS[@]+"${PS_PROCS[@]}"}; do
            __nhc_who="${PS_UID[__nhc_pid]}"
            [[ -z ${__nhc_seen[$__nhc_who]-} ]] || continue
            __nhc_seen[$__nhc_who]=1
            if nhc_job_user_auth "${PS_USER[__nhc_pid]:-$__nhc_who}" "$__nhc_who"; then __nhc_allowed+=("$__nhc_who"); fi
        done
    elif [[ "${JOBUSERS[*]-}" != "${__nhc_found-}" ]]; then # not what nhc_job_find_users has left behind
        __nhc_allowed=(${JOBUSERS[@]+"${JOBUSERS[@]}"})
    fi
    if [[ -n ${__nhc_no_jobs-} ]]; then # squeue gave no answer: the check asks it again
        [[ -z ${__nhc_allowed[*]-} ]] || set -- -u "${__nhc_allowed[*]}" "$@"
        __nhc_allowed=() __nhc_seen=()
    fi
    __nhc_event array NHC_ALLOWED_USERS ${__nhc_allowed[@]+"${__nhc_allowed[@]}"}
    __nhc_event array NHC_SEEN_USERS ${__nhc_seen[@]+"${!__nhc_seen[@]}"}
    __nhc_ask native check_ps_unauth_users "$@"
}

# check_cmd_status may name a function of this shell, which no other program can run.
__nhc_cmd_status() {
    local OPTIND=1 OPTARG __nhc_o __nhc_name=check_cmd_status __nhc_want='' __nhc_limit=5 __nhc_good=1
    while getopts :C:r:t: __nhc_o; do
        case $__nhc_o in
            C) __nhc_name="$OPTARG" ;;
            r) __nhc_want="$OPTARG" ;;
            t) __nhc_limit="${OPTARG:-5}" ;;
            *) __nhc_good=0 ;;
        esac
    done
    if [[ $__nhc_good == 0 || ! $__nhc_want$__nhc_limit =~ ^[0-9]+$ ]] || ! declare -F -- "${@:OPTIND:1}" >/dev/null; then
        __nhc_ask native check_cmd_status "$@"
        return
    fi
    shift $((OPTIND - 1))
    if [[ $TIMEOUT =~ ^[0-9]+$ ]] && ((TIMEOUT > 0 && __nhc_limit > TIMEOUT)); then
        die 1 "$__nhc_name:  Command timeout $__nhc_limit exceeds NHC timeout $TIMEOUT"
        return 1
    fi
    local __nhc_rc __nhc_began=$SECONDS __nhc_pid __nhc_timer
    set -m # a process group each, so that nothing of it stays
    { "$@" </dev/null &>/dev/null & } 2>/dev/null
    __nhc_pid=$!
    { __nhc_alarm "$__nhc_limit" -$__nhc_pid </dev/null &>/dev/null & } 2>/dev/null
    __nhc_timer=$!
    set +m
    wait $__nhc_pid 2>/dev/null
    __nhc_rc=$?
    kill -KILL -- -$__nhc_timer -$__nhc_pid 2>/dev/null
    wait $__nhc_timer 2>/dev/null
    ((__nhc_rc != ${__nhc_want:-0})) || return 0
    if ((SECONDS >= __nhc_began + __nhc_limit && __nhc_rc == 143)); then
        die 1 "$__nhc_name:  TIMEOUT after ${__nhc_limit}s for \"$*\"; subprocess terminated."
    else
        die 1 "$__nhc_name:  $__nhc_rc${__nhc_want:+ (expected $__nhc_want)} returned by \"$*\"."
    fi
    return 1
}

# __nhc_alarm SECONDS PID: ALRM, TERM and KILL, without a sleep(1) that would stay.
__nhc_alarm() {
    local __nhc_never __nhc_x
    trap - EXIT
    exec {__nhc_never}<> <(:)
    read -r -t "$1" -u "$__nhc_never" __nhc_x
    kill -ALRM -- "$2"
    read -r -t 0.3 -u "$__nhc_never" __nhc_x
    kill -TERM -- "$2"
    read -r -t 0.4 -u "$__nhc_never" __nhc_x
    kill -KILL -- "$2"
}
