// Package fakeras is a fake of NCCL's RAS endpoint, for tests.
package fakeras

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Serve listens at NCCL_RAS_ADDR as NCCL does, prints a line, and answers until the process is killed:
//
//	lag      8 ranks of this process on RAS_HOST (10.0.0.1); rank 3 lags
//	ok       8 ranks, none lags
//	mute     accepts, and answers nothing
//	garbage  answers with something else
//	trickle  answers a byte a second
//	endless  a report without end
func Serve(how string) {
	upLoopback()
	share := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return err
	}}
	l, err := share.Listen(context.Background(), "tcp", cmp.Or(os.Getenv("NCCL_RAS_ADDR"), "127.0.0.1:28028"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go answer(conn, how)
	}
}

// upLoopback starts the loopback interface of a new network namespace.
func upLoopback() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if lo, err := unix.NewIfreq("lo"); err == nil && unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo) == nil && lo.Uint16()&unix.IFF_UP == 0 {
		lo.SetUint16(lo.Uint16() | unix.IFF_UP)
		_ = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
	}
}

func answer(conn net.Conn, how string) {
	defer conn.Close()
	in := bufio.NewScanner(conn)
	for in.Scan() {
		line := strings.ToUpper(strings.TrimSpace(in.Text()))
		switch {
		case how == "mute":
		case how == "garbage":
			fmt.Fprint(conn, "hello\x1b[2Jworld\n")
		case how == "trickle":
			for range 3600 {
				fmt.Fprint(conn, "x")
				time.Sleep(time.Second)
			}
		case strings.HasPrefix(line, "CLIENT PROTOCOL"):
			fmt.Fprint(conn, "SERVER PROTOCOL 2\n")
		case strings.HasPrefix(line, "TIMEOUT"):
			fmt.Fprint(conn, "OK\n")
		case line == "VERBOSE STATUS" && how == "endless":
			_, err := io.WriteString(conn, "x")
			for err == nil {
				_, err = io.WriteString(conn, strings.Repeat("y\n", 1<<15))
			}
		case line == "VERBOSE STATUS":
			fmt.Fprint(conn, Report(how == "lag", os.Getpid()))
			return // NCCL closes the connection
		default:
			fmt.Fprintf(conn, "ERROR: Unknown command %s\n", line)
		}
	}
}

// Report is the text of 8 ranks of a process. If one lags, it is rank 3.
func Report(lag bool, pid int) string {
	errors, warning := "OK", ""
	if lag {
		errors = "MISMATCH"
		warning = fmt.Sprintf(`#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 3 has launched up to operation 6649 -- GPU 3 managed by process %d on node %s

`, pid, cmp.Or(os.Getenv("RAS_HOST"), "10.0.0.1"))
	}
	return fmt.Sprintf(`NCCL version 2.26.2 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          1            8          1        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  %s

Errors
======

Warnings
========

%s`, errors, warning)
}
