# This is the second half of the functions that LBNL NHC's own scripts provide for a site's (see
# library.sh): they gather facts about the node in arrays.

# The arrays that a check line uses have been set before.
: "${HW_SOCKETS:=0}" "${HW_CORES:=0}" "${HW_THREADS:=0}"
: "${HW_RAM_TOTAL:=0}" "${HW_RAM_FREE:=0}" "${HW_SWAP_TOTAL:=0}" "${HW_SWAP_FREE:=0}"
HW_IB_STATE=() HW_IB_PHYS_STATE=() HW_IB_RATE=() HW_IB_DEV=() HW_MODULES=() HW_ETH_DEV=()

PS_PROCS=() PS_USER=() PS_UID=() PS_PPID=() PS_PCPU=() PS_PMEM=() PS_RSS=() PS_VSZ=() PS_TIME=() PS_ARGS=()
LOADAVG=() RUNPROCS=0 TOTPROCS=0 LASTPID=0

FS_DEV=() FS_MNTPT=() FS_TYPE=() FS_OPTS=()
DF_DEV=() DF_TYPE=() DF_SIZE=() DF_USED=() DF_FREE=() DF_PCT=() DF_MNTPT=()
DFI_DEV=() DFI_TYPE=() DFI_INODES=() DFI_IUSED=() DFI_IFREE=() DFI_PCT=() DFI_MNTPT=()
: "${STAT_CMD:=/usr/bin/stat}" "${STAT_FMT_ARGS:=-c}" "${NETSTAT_CMD:=netstat}" "${NETSTAT_ARGS:=-Tanpee -A inet,inet6,unix}"
: "${SS_CMD:=ss}" "${SS_ARGS:=-anpee -A inet,unix}"
: "${DF_CMD:=df}" "${DF_FLAGS:=-Tka}" "${DFI_CMD:=$DF_CMD}" "${DFI_FLAGS:=-Tia}"

[[ -n ${JOBUSERS[*]-} ]] || JOBUSERS=() # a line may have set it before
: "${NHC_AUTH_USERS:=root nobody}"

# The node's hardware.

nhc_hw_cpu_gather_data() {
    local __nhc_key __nhc_value __nhc_cores='' __nhc_siblings='' __nhc_cpus=0
    local -A __nhc_ids=()
    while IFS=: read -r __nhc_key __nhc_value; do
        __nhc_key="${__nhc_key%%[[:space:]]}" __nhc_value="${__nhc_value# }"
        case ${__nhc_key//$'\t'/} in
            processor) __nhc_cpus=$((__nhc_cpus + 1)) ;;
            'physical id') __nhc_ids["x$__nhc_value"]=1 ;;
            'cpu cores') __nhc_cores="$__nhc_value" ;;
            siblings) __nhc_siblings="$__nhc_value" ;;
        esac
    done <"${1:-/proc/cpuinfo}"
    HW_SOCKETS=${#__nhc_ids[*]}
    if ((HW_SOCKETS == 0)); then
        ((__nhc_cpus > 0)) || __nhc_cpus=1
        HW_SOCKETS=$__nhc_cpus HW_CORES=$__nhc_cpus HW_THREADS=$__nhc_cpus
    else
        HW_CORES=$((HW_SOCKETS * ${__nhc_cores:-1})) HW_THREADS=$((HW_SOCKETS * ${__nhc_siblings:-${__nhc_cores:-1}}))
    fi
    dbg "Got $HW_SOCKETS processors ($HW_CORES cores, $HW_THREADS threads)"
}

nhc_hw_mem_gather_data() {
    local __nhc_key __nhc_kb __nhc_rest
    HW_RAM_TOTAL=0 HW_RAM_FREE=0 HW_SWAP_TOTAL=0 HW_SWAP_FREE=0
    while IFS=$' \t' read -r __nhc_key __nhc_kb __nhc_rest; do
        case $__nhc_key in
            MemTotal:) HW_RAM_TOTAL=$__nhc_kb ;;
            MemFree: | Buffers: | Cached:) HW_RAM_FREE=$((HW_RAM_FREE + __nhc_kb)) ;;
            SwapTotal:) HW_SWAP_TOTAL=$__nhc_kb ;;
            SwapFree:) HW_SWAP_FREE=$__nhc_kb ;;
        esac
    done <"${1:-/proc/meminfo}"
    dbg "Found $HW_RAM_TOTAL kB RAM ($HW_RAM_FREE kB free)"
    dbg "Found $HW_SWAP_TOTAL kB swap ($HW_SWAP_FREE kB free)"
}

nhc_hw_hsn_gather_data() {
    local __nhc_port __nhc_word __nhc_dev IFS=$' \t\n'
    local -a __nhc_ports __nhc_f
    HW_IB_STATE=() HW_IB_PHYS_STATE=() HW_IB_RATE=() HW_IB_DEV=() HW_IB_UMAD_ABI_VER=0
    set +f
    __nhc_ports=(/sys/class/infiniband/*/ports/*)
    set -f
    for __nhc_port in "${__nhc_ports[@]}"; do
        [[ -e $__nhc_port ]] || break
        __nhc_dev="${__nhc_port#/sys/class/infiniband/}"
        HW_IB_DEV+=("${__nhc_dev%%/*}:${__nhc_dev##*/}")
        read -r -a __nhc_f <"$__nhc_port/state"
        HW_IB_STATE+=("${__nhc_f[1]-}")
        read -r -a __nhc_f <"$__nhc_port/phys_state"
        HW_IB_PHYS_STATE+=("${__nhc_f[1]-}")
        read -r -a __nhc_f <"$__nhc_port/rate"
        HW_IB_RATE+=("${__nhc_f[0]-}")
        dbg "Found ${HW_IB_STATE[-1]} (${HW_IB_PHYS_STATE[-1]}) IB Port ${HW_IB_DEV[-1]} (${HW_IB_RATE[-1]} Gb/sec)"
    done
    [[ -f /sys/class/infiniband_mad/abi_version ]] && read -r HW_IB_UMAD_ABI_VER </sys/class/infiniband_mad/abi_version
    return 0
}

nhc_hw_kmod_gather_data() {
    local __nhc_name __nhc_rest
    HW_MODULES=()
    while IFS=' ' read -r __nhc_name __nhc_rest; do HW_MODULES+=("$__nhc_name"); done <"${1:-/proc/modules}"
    dbg "Found kernel modules:  ${HW_MODULES[*]}"
}

nhc_hw_eth_gather_data() {
    local __nhc_name __nhc_rest
    HW_ETH_DEV=()
    while IFS=$' \t' read -r __nhc_name __nhc_rest; do
        [[ $__nhc_name == *:* ]] && HW_ETH_DEV+=("${__nhc_name%%:*}")
    done <"${1:-/proc/net/dev}"
    dbg "Found network devices:  ${HW_ETH_DEV[*]}"
}

nhc_hw_gather_data() {
    nhc_hw_cpu_gather_data
    nhc_hw_mem_gather_data
    nhc_hw_hsn_gather_data
    nhc_hw_kmod_gather_data
    nhc_hw_eth_gather_data
}

# Processes, as ps shows them.

nhc_ps_gather_data() {
    local __nhc_line __nhc_pid IFS=$' \t\n'
    local -a __nhc_f
    PS_PROCS=() PS_USER=() PS_UID=() PS_PPID=() PS_PCPU=() PS_PMEM=() PS_RSS=() PS_VSZ=() PS_TIME=() PS_ARGS=()
    [[ -n ${MAX_SYS_UID-} ]] || nhc_common_get_max_sys_uid
    while read -r __nhc_line; do
        __nhc_f=($__nhc_line)
        __nhc_pid="${__nhc_f[2]}"
        [[ $__nhc_pid =~ ^[0-9]+$ ]] || continue
        PS_PROCS+=("$__nhc_pid")
        PS_USER[__nhc_pid]="${__nhc_f[0]}" PS_UID[__nhc_pid]="${__nhc_f[1]}" PS_PPID[__nhc_pid]="${__nhc_f[3]}"
        PS_PCPU[__nhc_pid]="${__nhc_f[4]}" PS_PMEM[__nhc_pid]="${__nhc_f[5]}" PS_RSS[__nhc_pid]="${__nhc_f[6]}"
        PS_VSZ[__nhc_pid]="${__nhc_f[7]}" PS_TIME[__nhc_pid]="${__nhc_f[8]}" PS_ARGS[__nhc_pid]="${__nhc_f[*]:9}"
        if [[ ${__nhc_f[0]} == "${__nhc_f[1]}" ]]; then
            nhc_common_get_userid "${__nhc_f[1]}" "PS_USER[$__nhc_pid]"
        fi
    done < <(COLUMNS=1024 ps axo user:32,uid,pid,ppid,pcpu,pmem,rss,vsz,bsdtime,args)
    dbg "Got ${#PS_PROCS[*]} processes"
}

nhc_loadavg_gather_data() {
    local __nhc_one __nhc_five __nhc_fifteen __nhc_procs
    IFS=' ' read -r __nhc_one __nhc_five __nhc_fifteen __nhc_procs LASTPID </proc/loadavg
    RUNPROCS="${__nhc_procs%/*}" TOTPROCS="${__nhc_procs#*/}"
    LOADAVG=("${__nhc_one%.*}" "${__nhc_five%.*}" "${__nhc_fifteen%.*}")
}

# nhc_ps_pid_lineage PID MATCH: some ancestor's command line matches.
nhc_ps_pid_lineage() {
    local __nhc_pid="$1"
    [[ ${#PS_PROCS[*]} -gt 0 ]] || nhc_ps_gather_data
    [[ -n ${2-} ]] || return 1
    while [[ $__nhc_pid =~ ^[0-9]+$ ]] && ((__nhc_pid > 1)); do
        __nhc_pid="${PS_PPID[__nhc_pid]-}"
        [[ -n $__nhc_pid ]] && mcheck "${PS_ARGS[__nhc_pid]-}" "$2" && return 0
    done
    return 1
}

# File systems.

# nhc_fs_mounts_gather_data [AUTOMOUNT-POINT...]
nhc_fs_mounts_gather_data() {
    local __nhc_fs __nhc_i
    local -A __nhc_at=()
    local -a __nhc_f
    [[ -r /proc/mounts ]] || return 1
    for __nhc_fs in "$@"; do read -r <"$__nhc_fs/NHC/no/such/file"; done &>/dev/null
    FS_DEV=() FS_MNTPT=() FS_TYPE=() FS_OPTS=()
    while IFS=' ' read -r -a __nhc_f; do
        __nhc_i="${__nhc_at[${__nhc_f[1]}]-${#FS_DEV[*]}}"
        __nhc_at["${__nhc_f[1]}"]=$__nhc_i
        FS_DEV[__nhc_i]="${__nhc_f[0]}" FS_MNTPT[__nhc_i]="${__nhc_f[1]}" FS_TYPE[__nhc_i]="${__nhc_f[2]}" FS_OPTS[__nhc_i]="${__nhc_f[3]}"
    done </proc/mounts
}

# __nhc_df PREFIX COMMAND NAMES...: the columns of df into arrays.
__nhc_df() {
    local __nhc_prefix="$1" __nhc_i __nhc_name __nhc_first=1 IFS=$' \t\n'
    local -a __nhc_f __nhc_names=(DEV TYPE "${@:3}" PCT MNTPT)
    for __nhc_name in "${__nhc_names[@]}"; do eval "$__nhc_prefix$__nhc_name=()"; done
    while read -r -a __nhc_f; do
        if ((__nhc_first)); then
            __nhc_first=0
            continue
        fi
        for __nhc_i in 2 3 4 5; do [[ ${__nhc_f[__nhc_i]} != - ]] || __nhc_f[__nhc_i]=0; done
        __nhc_f[5]="${__nhc_f[5]%\%}"
        for __nhc_i in "${!__nhc_names[@]}"; do
            local -n __nhc_column="$__nhc_prefix${__nhc_names[__nhc_i]}"
            __nhc_column+=("${__nhc_f[__nhc_i]-}")
            unset -n __nhc_column
        done
    done < <($2)
}

nhc_fs_df_gather_data() { __nhc_df DF_ "$DF_CMD $DF_FLAGS" SIZE USED FREE; }
nhc_fs_dfi_gather_data() { __nhc_df DFI_ "$DFI_CMD $DFI_FLAGS" INODES IUSED IFREE; }

# Jobs.

# __nhc_job_user NAME: may have processes here.
__nhc_job_user() {
    local __nhc_user
    for __nhc_user in "${JOBUSERS[@]}"; do [[ $__nhc_user != "$1" ]] || return 0; done
    JOBUSERS+=("$1")
}

# nhc_job_find_users sets JOBUSERS to the users who have a job on this node.
nhc_job_find_users() {
    local __nhc_file __nhc_line __nhc_xml __nhc_user IFS=$' \t\n'
    local -a __nhc_files
    JOBUSERS=($NHC_AUTH_USERS)
    __nhc_no_jobs=
    case $NHC_RM in
        pbs)
            : "${PBS_SERVER_HOME:=/var/spool/torque}" "${JOBFILE_PATH:=$PBS_SERVER_HOME/mom_priv/jobs}"
            set +f
            __nhc_files=("$JOBFILE_PATH"/*.JB)
            [[ ${#__nhc_files[*]} -eq 1 && ! -f ${__nhc_files[0]} && -d $PWD/jobs ]] && __nhc_files=("$PWD"/jobs/*.JB)
            set -f
            for __nhc_file in "${__nhc_files[@]}"; do
                [[ -f $__nhc_file ]] || continue
                __nhc_xml=0
                while read -r __nhc_line || [[ -n $__nhc_line ]]; do
                    case $__nhc_xml$__nhc_line in
                        1*'</euser>') __nhc_user="${__nhc_line%'</euser>'}" __nhc_user="${__nhc_user##*'<euser'*'>'}" ;;
                        0PBS_O_LOGNAME=*) __nhc_user="${__nhc_line#*=}" ;;
                        '0<?xml'*)
                            __nhc_xml=1
                            continue
                            ;;
                        *) continue ;;
                    esac
                    __nhc_job_user "$__nhc_user"
                    break
                done <"$__nhc_file"
            done
            ;;
        slurm)
            __nhc_line=$(${SQUEUE_CMD:-/usr/bin/squeue} ${SQUEUE_NODE:--w "$HOSTNAME_S"} ${SQUEUE_FMT_ARGS:---noheader -o %u}) || __nhc_no_jobs=1
            while read -r __nhc_user; do
                [[ -z $__nhc_user ]] || __nhc_job_user "$__nhc_user"
            done <<<"$__nhc_line"
            ;;
        *) dbg "Unsupported RM detected in $FUNCNAME():  \"$NHC_RM\"" ;;
    esac
    __nhc_found="${JOBUSERS[*]}" # see __nhc_unauth_users, as for __nhc_no_jobs
    dbg "Authorized users are:  ${JOBUSERS[*]}"
}

# nhc_job_user_auth USER [UID]: may have processes on this node.
nhc_job_user_auth() {
    local __nhc_uid="${2-}" __nhc_user
    [[ ${#JOBUSERS[*]} -gt 0 ]] || nhc_job_find_users
    [[ -n ${MAX_SYS_UID-} ]] || nhc_common_get_max_sys_uid
    [[ -n $__nhc_uid ]] || nhc_common_get_uid "$1" __nhc_uid
    if [[ $__nhc_uid =~ ^[0-9]+$ ]] && ((__nhc_uid <= MAX_SYS_UID)); then return 0; fi
    for __nhc_user in "${JOBUSERS[@]}"; do [[ $__nhc_user != "$1" ]] || return 0; done
    dbg "User $1 ($__nhc_uid > $MAX_SYS_UID) is NOT authorized."
    return 1
}

# nhc_ps_check_res CHECK KIND WORD...: check_ps_cpu (1), check_ps_mem (2),
# check_ps_physmem (3) or check_ps_time (4) under the name CHECK.
nhc_ps_check_res() {
    local __nhc_as="$1" __nhc_kind
    case $2 in
        1) __nhc_kind=check_ps_cpu ;;
        2) __nhc_kind=check_ps_mem ;;
        3) __nhc_kind=check_ps_physmem ;;
        4) __nhc_kind=check_ps_time ;;
        *)
            die 1 "$1:  Invalid kind \"$2\" of $FUNCNAME; want 1, 2, 3 or 4"
            return 1
            ;;
    esac
    __nhc_ask native "$__nhc_kind" "${@:3}"
}

# Files and sockets.

NHC_STAT_FILES=() NHC_STAT_MODE=() NHC_STAT_BLOCKS=() NHC_STAT_BLKSIZE=() NHC_STAT_DEVNO=() NHC_STAT_GID=() NHC_STAT_GROUP=()
NHC_STAT_NLINKS=() NHC_STAT_INODE=() NHC_STAT_MNTPNT=() NHC_STAT_REALNAME=() NHC_STAT_SIZE=() NHC_STAT_MAJOR=() NHC_STAT_MINOR=()
NHC_STAT_UID=() NHC_STAT_USER=() NHC_STAT_ATIME=() NHC_STAT_MTIME=() NHC_STAT_CTIME=()

# nhc_file_stat FILE VARIABLE [VARIABLE FOR AN ERROR]: the index of a file's
# attributes in the arrays above.
nhc_file_stat() {
    local __nhc_i __nhc_rc IFS=$'\f'
    local -a __nhc_f
    for __nhc_i in "${!NHC_STAT_FILES[@]}"; do
        if [[ ${NHC_STAT_FILES[__nhc_i]} == "$1" ]]; then
            printf -v "$2" %s "$__nhc_i"
            return 0
        fi
    done
    __nhc_f=($(stat -c $'%a\f%b\f%B\f%D\f%g\f%G\f%h\f%i\f%m\f%N\f%s\f%t\f%T\f%u\f%U\f%X\f%Y\f%Z' -- "$1"))
    __nhc_rc=$?
    if [[ $__nhc_rc != 0 ]]; then
        [[ -z ${3-} ]] || printf -v "$3" %s "${__nhc_f[*]}"
        return "$__nhc_rc"
    fi
    __nhc_i=${#NHC_STAT_FILES[*]}
    NHC_STAT_FILES+=("$1") NHC_STAT_MODE[__nhc_i]="0${__nhc_f[0]}" NHC_STAT_BLOCKS[__nhc_i]="${__nhc_f[1]}"
    NHC_STAT_BLKSIZE[__nhc_i]="${__nhc_f[2]}" NHC_STAT_DEVNO[__nhc_i]="0x${__nhc_f[3]}" NHC_STAT_GID[__nhc_i]="${__nhc_f[4]}"
    NHC_STAT_GROUP[__nhc_i]="${__nhc_f[5]}" NHC_STAT_NLINKS[__nhc_i]="${__nhc_f[6]}" NHC_STAT_INODE[__nhc_i]="${__nhc_f[7]}"
    NHC_STAT_MNTPNT[__nhc_i]="${__nhc_f[8]}" NHC_STAT_REALNAME[__nhc_i]="${__nhc_f[9]}" NHC_STAT_SIZE[__nhc_i]="${__nhc_f[10]}"
    NHC_STAT_MAJOR[__nhc_i]="0x${__nhc_f[11]}" NHC_STAT_MINOR[__nhc_i]="0x${__nhc_f[12]}" NHC_STAT_UID[__nhc_i]="${__nhc_f[13]}"
    NHC_STAT_USER[__nhc_i]="${__nhc_f[14]}" NHC_STAT_ATIME[__nhc_i]="${__nhc_f[15]}" NHC_STAT_MTIME[__nhc_i]="${__nhc_f[16]}"
    NHC_STAT_CTIME[__nhc_i]="${__nhc_f[17]}"
    printf -v "$2" %s "$__nhc_i"
}

# nhc_sockets_gather_data uses only ss: the netstat of many distributions does not support LBNL
# NHC's options.
nhc_sockets_gather_data() {
    local __nhc_line __nhc_word __nhc_i=0 __nhc_who IFS=$' \t\n'
    local -a __nhc_f
    NET_PROTO=() NET_LOCADDR=() NET_RMTADDR=() NET_TYPE=() NET_STATE=() NET_USER=() NET_UID=() NET_PROCPID=() NET_PROCNAME=() NET_STR=()
    type -t "$SS_CMD" >/dev/null || return 1
    while read -r -a __nhc_f; do
        [[ ${__nhc_f[0]-} != Netid && ${#__nhc_f[*]} -ge 6 ]] || continue
        NET_PROTO[__nhc_i]="${__nhc_f[0]}" NET_STATE[__nhc_i]="${__nhc_f[1]}" NET_LOCADDR[__nhc_i]="${__nhc_f[4]}"
        NET_PROCNAME[__nhc_i]=unknown NET_PROCPID[__nhc_i]=0
        [[ ${__nhc_f[1]} != ESTAB ]] || NET_STATE[__nhc_i]=ESTABLISHED
        case ${__nhc_f[0]} in
            u_str) NET_PROTO[__nhc_i]=unix NET_TYPE[__nhc_i]=STREAM ;;
            u_dgr) NET_PROTO[__nhc_i]=unix NET_TYPE[__nhc_i]=DGRAM ;;
            *) NET_RMTADDR[__nhc_i]="${__nhc_f[5]}" NET_UID[__nhc_i]=0 ;; # ss does not print uid 0
        esac
        for __nhc_word in "${__nhc_f[@]:6}"; do
            case $__nhc_word in
                'users:(("'*)
                    __nhc_who="${__nhc_word#'users:(("'}"
                    NET_PROCNAME[__nhc_i]="${__nhc_who%%'",'*}" __nhc_who="${__nhc_who#*'",'}"
                    __nhc_who="${__nhc_who%%,*}" NET_PROCPID[__nhc_i]="${__nhc_who#pid=}"
                    ;;
                uid[:=]*) [[ ${NET_PROTO[__nhc_i]} == unix ]] || NET_UID[__nhc_i]="${__nhc_word#uid?}" ;;
            esac
        done
        [[ -z ${NET_UID[__nhc_i]-} ]] || nhc_common_get_userid "${NET_UID[__nhc_i]}" "NET_USER[$__nhc_i]"
        __nhc_who="${NET_USER[__nhc_i]:+${NET_USER[__nhc_i]}[${NET_UID[__nhc_i]}]/}${NET_PROCNAME[__nhc_i]}[${NET_PROCPID[__nhc_i]}]"
        __nhc_line="${NET_LOCADDR[__nhc_i]}${NET_RMTADDR[__nhc_i]:+ -> ${NET_RMTADDR[__nhc_i]}}${NET_STATE[__nhc_i]:+ (${NET_STATE[__nhc_i]})}"
        NET_STR[__nhc_i]="${NET_PROTO[__nhc_i]}${NET_TYPE[__nhc_i]:+.${NET_TYPE[__nhc_i]}}/$__nhc_who:  $__nhc_line"
        dbg "Got socket $__nhc_i:  ${NET_STR[__nhc_i]}"
        __nhc_i=$((__nhc_i + 1))
    done < <($SS_CMD $SS_ARGS 2>/dev/null)
    return 0
}

# The checks of LBNL NHC keep the output of a tool for others, once in a run.

nhc_dmi_gather_raw_data() {
    local IFS=$'\n'
    type -t dmidecode >/dev/null || return 1
    DMI_RAW_DATA=($(dmidecode))
}

# nhc_dmi_gather_data sorts the lines of dmidecode by their handles. A line of DMI_DATA begins with
# the titles of its sections.
nhc_dmi_gather_data() {
    local __nhc_line __nhc_handle='' __nhc_text IFS=$' \t\n'
    local -a __nhc_tags=()
    ((${#DMI_RAW_DATA[*]} > 0)) || nhc_dmi_gather_raw_data || return 1
    DMI_HANDLES=() DMI_HANDLE_LOOKUP=() DMI_TYPE_IDS=() DMI_TYPE_STRINGS=() DMI_TYPE_HANDLES=() DMI_DATA=()
    for __nhc_line in "${DMI_RAW_DATA[@]}"; do
        if [[ $__nhc_line =~ ^Handle\ (0[Xx][A-Fa-f0-9]+),\ DMI\ type\ ([0-9]+),\  ]]; then
            __nhc_handle="${BASH_REMATCH[1]}" __nhc_tags=()
            DMI_HANDLE_LOOKUP[__nhc_handle]=${#DMI_HANDLES[*]} DMI_HANDLES+=("$__nhc_handle")
            DMI_TYPE_IDS[__nhc_handle]="${BASH_REMATCH[2]}" DMI_TYPE_HANDLES[BASH_REMATCH[2]]+=" $__nhc_handle"
            DMI_DATA[__nhc_handle]=''
        elif [[ -n $__nhc_handle ]]; then
            __nhc_text="$__nhc_line"
            if [[ $__nhc_line =~ ^([[:space:]]+)([^[:space:]].*)$ ]]; then
                __nhc_text="${BASH_REMATCH[2]}" __nhc_tags=("${__nhc_tags[@]:0:${#BASH_REMATCH[1]}}")
                DMI_DATA[__nhc_handle]+="${DMI_DATA[__nhc_handle]:+$'\n'}${__nhc_tags[*]} $__nhc_text"
            else
                DMI_TYPE_STRINGS[__nhc_handle]="$__nhc_text"
            fi
            __nhc_tags+=("${__nhc_text%:}:")
        fi
    done
}

nhc_nv_gather_data() {
    local IFS=$' \t\n'
    NV_HEALTHMON_OUTPUT="$($NVIDIA_HEALTHMON $NVIDIA_HEALTHMON_ARGS 2>/dev/null)"
    NV_HEALTHMON_RC=$?
    IFS=$'\n'
    NV_HEALTHMON_LINES=($NV_HEALTHMON_OUTPUT)
}

nhc_nvsmi_gather_data() {
    local IFS=$' \t\n'
    NVSMI_HEALTHMON_OUTPUT="$($NVIDIA_SMI_HEALTHMON $NVIDIA_SMI_HEALTHMON_ARGS 2>/dev/null)"
    NVSMI_HEALTHMON_RC=$?
    IFS=$'\n'
    NVSMI_HEALTHMON_LINES=($NVSMI_HEALTHMON_OUTPUT)
}
