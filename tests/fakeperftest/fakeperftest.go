// Package fakeperftest is an ib_write_bw and an ib_write_lat for tests between two nodes. Its server
// and its client connect by TCP, and the data of a test cross that connection: so it measures the
// network between them. It prints what perftest 25.01 prints.
package fakeperftest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names are the programs that Main can be.
var Names = []string{"ib_write_bw", "ib_write_lat"}

// Is reports whether a process with these arguments is one of the programs: a link to a test program.
func Is(args []string) bool { return slices.Contains(Names, filepath.Base(args[0])) }

// Setting is the prefix of the environment variables that change a device: PERFTEST_mlx5_0=die. The
// acts are die (a signal ends it when the other end has connected), garbage, hang, deaf (the server
// never listens), transfer (an error in the middle), and nodevice.
const Setting = "PERFTEST_"

// Old is an environment variable: with it the program is perftest 4.5, whose server listens at all addresses.
const Old = Setting + "OLD=1"

// said is an error in perftest's own words.
type said string

func (s said) Error() string { return string(s) }

// run is one run of a program.
type run struct {
	device, host, act string
	bind              string // address of a server
	port, size        int
	count             int           // of a latency
	span              time.Duration // of a bandwidth
	latency           bool
}

// Main runs the program of an argument list, and returns its exit status.
func Main(args []string) int {
	r, err := parse(args)
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func parse(args []string) (*run, error) {
	old := os.Getenv(Setting+"OLD") != ""
	r := &run{bind: "0.0.0.0", port: 18515, size: 65536, count: 1000, latency: filepath.Base(args[0]) == "ib_write_lat"}
	for i := 1; i < len(args); i++ {
		number := func(to *int) {
			if i++; i < len(args) {
				*to, _ = strconv.Atoi(args[i])
			}
		}
		text := func(to *string) {
			if i++; i < len(args) {
				*to = args[i]
			}
		}
		seconds, ignored := 0, 0
		switch word := args[i]; {
		case word == "--help":
			fmt.Print("Usage:\n  start a server and wait for connection\n")
			if !old {
				fmt.Print("      --bind_source_ip  Source IP of the interface used for connection establishment.\n")
			}
			return nil, said("")
		case word == "--bind_source_ip" && !old:
			text(&r.bind)
			continue
		}
		switch word := args[i]; word {
		case "-d":
			text(&r.device)
		case "-p":
			number(&r.port)
		case "-s":
			number(&r.size)
		case "-n":
			number(&r.count)
		case "-D":
			number(&seconds)
			r.span = time.Duration(seconds) * time.Second
		case "-i", "-q", "-f", "-x":
			number(&ignored)
		case "-F", "--report_gbits":
		default:
			if strings.HasPrefix(word, "-") {
				return nil, fmt.Errorf("%s: unrecognized option '%s'", args[0], word)
			}
			r.host = word
		}
	}
	r.act = os.Getenv(Setting + r.device)
	return r, nil
}

func (r *run) run() error {
	if r.act == "nodevice" {
		return said(" Unable to find the Infiniband/RoCE device")
	}
	if r.host == "" {
		return r.serve()
	}
	return r.write()
}

// hello is what the ends exchange first.
const hello = "parameters of a test\n"

// serve serves one client.
func (r *run) serve() error {
	fmt.Print("\n************************************\n* Waiting for client to connect... *\n************************************\n")
	if r.act == "deaf" {
		time.Sleep(time.Hour)
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(r.bind, strconv.Itoa(r.port)))
	if err != nil {
		return said(fmt.Sprintf("Couldn't listen to port %d", r.port))
	}
	c, err := l.Accept()
	_ = l.Close()
	if err != nil {
		return err
	}
	defer c.Close()
	met := make([]byte, len(hello))
	if _, err := io.ReadFull(c, met); err != nil || string(met) != hello {
		return said(" Failed to exchange data between server and clients")
	}
	r.misbehave()
	buffer := make([]byte, max(r.size, 1<<16))
	for {
		n, err := c.Read(buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && r.latency {
			_, err = c.Write(buffer[:n])
		}
		if err != nil {
			return said(" Failed to exchange data between server and clients")
		}
	}
}

// misbehave does what the environment wants of a device whose ends are connected.
func (r *run) misbehave() {
	switch r.act {
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Hour)
	case "hang":
		time.Sleep(time.Hour)
	}
}

const line = "---------------------------------------------------------------------------------------"

// write is the client.
func (r *run) write() error {
	c, err := net.DialTimeout("tcp4", net.JoinHostPort(r.host, strconv.Itoa(r.port)), 10*time.Second)
	if err != nil {
		fmt.Printf("Couldn't connect to %s:%d\n", r.host, r.port)
		return said("Unable to open file descriptor for socket connection Unable to init the socket connection")
	}
	defer c.Close()
	if _, err := c.Write([]byte(hello)); err != nil {
		return said(" Failed to exchange data between server and clients")
	}
	r.misbehave()
	kind := "BW"
	if r.latency {
		kind = "Latency"
	}
	fmt.Printf("%s\n                    RDMA_Write %s Test\n Dual-port       : OFF\t\tDevice         : %s\n%s\n", line, kind, r.device, line)
	if r.act == "garbage" {
		fmt.Println("#bytes is all that there is")
		return nil
	}
	if r.latency {
		err = r.pingPong(c)
	} else {
		err = r.stream(c)
	}
	if err != nil || r.act == "transfer" {
		fmt.Fprint(os.Stderr, " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n")
		return said(" Failed to complete run_iter_bw function successfully")
	}
	fmt.Println(line)
	return nil
}

// stream sends as fast as it can.
func (r *run) stream(c net.Conn) error {
	buffer, sent, began := make([]byte, r.size), 0, time.Now()
	for time.Since(began) < r.span {
		if err := c.SetWriteDeadline(began.Add(r.span)); err != nil {
			return err
		}
		n, err := c.Write(buffer)
		sent += n
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	rate := float64(sent) * 8 / time.Since(began).Seconds() / 1e9
	fmt.Print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n")
	fmt.Printf(" %-7d    %-10d       %-7.2f            %-7.6f\t\t     %-7.6f\n", r.size, sent/r.size, 0.0, rate, rate*1e3/8/float64(r.size))
	return nil
}

// pingPong measures half of the time of a message there and back.
func (r *run) pingPong(c net.Conn) error {
	buffer, times := make([]byte, r.size), make([]float64, r.count)
	for i := range times {
		began := time.Now()
		if _, err := c.Write(buffer); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, buffer); err != nil {
			return err
		}
		times[i] = float64(time.Since(began).Nanoseconds()) / 2e3
	}
	slices.Sort(times)
	mean := 0.0
	for _, t := range times {
		mean += t / float64(len(times))
	}
	at := func(part float64) float64 { return times[int(part*float64(len(times)-1))] }
	fmt.Print(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n")
	fmt.Printf(" %-7d %d          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f\n", r.size, r.count, at(0), at(1), at(0.5), mean, 0.0, at(0.99), at(0.999))
	return nil
}
