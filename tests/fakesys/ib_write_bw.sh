#!/bin/bash
# ib_write_bw of perftest @VERSION@, simulated. Server and client meet by a file in this directory
# instead of a TCP port. The file calls has its command lines.
version=@VERSION@ cuda=@CUDA@ rate=@RATE@
line=---------------------------------------------------------------------------------------
device= port=18515 size=65536 gbits= gid= duplex= host= gpu= dmabuf=
self=${0%/*}

usage() {
  printf 'Usage:\n  %s            start a server and wait for connection\n  %s <host>     connect to server at <host>\n\nOptions:\n' "$0" "$0"
  printf '  -b, --bidirectional  Measure bidirectional bandwidth (default unidirectional)\n'
  [[ $cuda ]] && printf '      --use_cuda=<cuda device id> Use CUDA specific device for GPUDirect RDMA testing\n'
  [[ $cuda == yes ]] && printf '      --use_cuda_bus_id=<cuda full BUS id> Use CUDA specific device, based on its full PCIe address, for GPUDirect RDMA testing\n      --use_cuda_dmabuf Use CUDA DMA-BUF for GPUDirect RDMA testing\n'
  printf '      --report_gbits  Report Max/Average BW of test in Gbit/sec (instead of MiB/sec)\n'
}

call="$*"
while (($#)); do
  case $1 in
  -d) device=$2; shift ;;
  -p) port=$2; shift ;;
  -s) size=$2; shift ;;
  -x) gid=$2; shift ;;
  -D | -i | -q | -f) shift ;;
  -b) duplex=yes ;;
  -F) ;;
  --report_gbits) gbits=yes ;;
  --help) usage; exit 1 ;;
  --use_cuda=* | --use_cuda_bus_id=*)
    if [[ ! $cuda && $version == 4.5 ]]; then
      usage
      printf "%s: unrecognized option '%s'\n Invalid Command or flag.\n Please check command line and run again.\n\n Parser function exited with Error\n" "$0" "$1" >&2
      exit 1
    elif [[ ! $cuda ]]; then
      echo ' Unsupported memory type'
      echo ' Parser function exited with Error' >&2
      exit 1
    fi
    gpu=yes ;;
  --use_cuda_dmabuf) # --use_cuda must precede it
    dmabuf=yes
    [[ $gpu ]] || { echo 'CUDA DMA-BUF cannot be used without CUDA' >&2; exit 1; } ;;
  -*) printf "%s: unrecognized option '%s'\n Invalid Command or flag.\n Please check command line and run again.\n\n Parser function exited with Error\n" "$0" "$1" >&2; exit 1 ;;
  *) host=$1 ;;
  esac
  shift
done
echo "CUDA_DEVICE_ORDER=$CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY LC_ALL=$LC_ALL $call" >>"$self/calls"

act=
case $device in
  @ACTS@
  ?*) ;;
esac
meet=$self/perftest.$port

case $act in
loader) echo "$0: error while loading shared libraries: libibverbs.so.1: cannot open shared object file: No such file or directory" >&2; exit 127 ;;
nodevice)
  [[ $version == 4.5 ]] || echo " IB device $device not found"
  echo ' Unable to find the Infiniband/RoCE device' >&2
  exit 1 ;;
esac

if [[ ! $host ]]; then
  printf '\n************************************\n* Waiting for client to connect... *\n************************************\n'
  [[ $act == deaf ]] && exec sleep 60
  echo "$device" >"$meet.$$"
  if ! ln "$meet.$$" "$meet" 2>/dev/null; then # another server listens there
    rm -f "$meet.$$"
    printf "Couldn't listen to port %s\n" "$port" >&2
    exit 1
  fi
  rm -f "$meet.$$"
  trap 'rm -f "$meet" "$meet.done"' EXIT
  while [[ ! -e $meet.done ]]; do sleep 0.01; done
  exit 0
fi
if [[ ! -e $meet ]]; then
  printf "Couldn't connect to %s:%s\nUnable to open file descriptor for socket connection Unable to init the socket connection\n" "$host" "$port" >&2
  exit 1
fi
trap ': >"$meet.done"' EXIT
[[ $act == memory || $act == dmabuf && ! $dmabuf ]] && { printf "Couldn't allocate MR\nfailed to create mr\n Couldn't create IB resources\n" >&2; exit 1; }
printf '%s\n                    RDMA_Write %sBW Test\n' "$line" "${duplex:+Bidirectional }"
printf ' Dual-port       : OFF\t\tDevice         : %s\n Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n' "$device"
if [[ $version == 4.5 ]]; then
  printf ' PCIe relax order: ON\n ibv_wr* API     : ON\n'
else
  printf ' PCIe relax order: ON\t\tLock-free      : OFF\n ibv_wr* API     : ON\t\tUsing DDP      : OFF\n'
fi
printf ' TX depth        : 128\n CQ Moderation   : 1\n Mtu             : 4096[B]\n Link type       : %s\n' "$([[ $gid ]] && echo Ethernet || echo IB)"
[[ $gid ]] && printf ' GID index       : %s\n' "$gid"
printf ' Max inline data : 0[B]\n rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n%s\n' "$line"
printf ' local address: LID 0x0b QPN 0x0147 PSN 0xd9e8ee RKey 0x1fff00 VAddr 0x007f5d88c00000\n remote address: LID 0x0b QPN 0x0148 PSN 0x1b2c3d RKey 0x1fff01 VAddr 0x007f5d88c80000\n'
case $act in
link) echo " Unable to Connect the HCA's through the link" >&2; exit 1 ;;
broken) echo ' Failed to exchange data between server and clients' >&2; exit 1 ;;
hang) exec sleep 60 ;;
'hang once') [[ -e $self/hung ]] || { : >"$self/hung"; exec sleep 60; } ;;
silent) exit 0 ;;
garbage) echo '#bytes is all that there is'; exit 0 ;;
esac
unit=MiB
[[ $version == 4.5 ]] && unit=MB
[[ $gbits ]] && unit=Gb
printf '%s\n #bytes     #iterations    BW peak[%s/sec]    BW average[%s/sec]   MsgRate[Mpps]\n' "$line" "$unit" "$unit"
[[ $act == apart && $(<"$meet") != "$device" ]] && act=transfer # it reaches itself only
[[ $act == 'transfer once' && ! -e $self/failed ]] && { : >"$self/failed"; act=transfer; }
case $act in
half) printf ' %-7s    %-10s       ' "$size" 23912; exit 0 ;;
comma) rate=${rate/./,} ;;
rate\ *) rate=${act#rate } ;;
late) sleep 4.2 ;&
transfer) printf ' Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n' >&2; exit 1 ;;
esac
gap='   '
[[ $version == 4.5 ]] || gap='     '
printf ' %-7s    %-10s       %-7s            %-7s\t\t%s%-7s\n%s\n' "$size" 23912 0.00 "$rate" "$gap" 0.005833 "$line"
