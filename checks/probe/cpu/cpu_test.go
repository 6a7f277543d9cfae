package cpu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// cpuinfo returns the text of /proc/cpuinfo on x86.
func cpuinfo(sockets, cores, siblings int) string {
	var b strings.Builder
	for i := range sockets * siblings {
		fmt.Fprintf(&b, "processor\t: %d\nmodel name\t: Some CPU @ 2.00GHz\nphysical id\t: %d\nsiblings\t: %d\n"+
			"core id\t\t: %d\ncpu cores\t: %d\nflags\t\t: fpu vme\n\n", i, i/siblings, siblings, i%cores, cores)
	}
	return b.String()
}

func TestCPUs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file string
		want       CPUs
	}{
		{name: "two sockets", file: cpuinfo(2, 8, 16), want: CPUs{Sockets: 2, Cores: 16, Threads: 32}},
		{name: "no hyperthreading", file: cpuinfo(1, 4, 4), want: CPUs{Sockets: 1, Cores: 4, Threads: 4}},
		{name: "no physical id", file: "processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\n\nprocessor\t: 2\n",
			want: CPUs{Sockets: 3, Cores: 3, Threads: 3}},
		{name: "empty", file: "\n", want: CPUs{Sockets: 1, Cores: 1, Threads: 1}},
		{name: "garbage", file: "\x00\xff:::\nprocessor\nphysical id : x\ncpu cores : many\n",
			want: CPUs{Sockets: 1}},
		{name: "no blank after the colon", file: "processor:0\n", want: CPUs{Sockets: 1, Cores: 1, Threads: 1}},
		{name: "no cores", file: "processor\t: 0\nphysical id\t: 0\n", want: CPUs{Sockets: 1, Cores: 1, Threads: 1}},
		{name: "cores 0", file: "processor\t: 0\nphysical id\t: 0\nsiblings\t: 4\ncpu cores\t: 0\n", want: CPUs{Sockets: 1, Threads: 4}},
		{name: "no siblings", file: "processor\t: 0\nphysical id\t: 0\ncpu cores\t: 4\n", want: CPUs{Sockets: 1, Cores: 4}},
		{name: "only cores", file: "cpu cores\t: 4\nsiblings\t: 8\n", want: CPUs{}},
		{name: "the last numbers count", file: cpuinfo(1, 2, 4) + "processor\t: 4\nphysical id\t: 1\nsiblings\t: 6\ncpu cores\t: 3\n",
			want: CPUs{Sockets: 2, Cores: 6, Threads: 12}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := CountCPUs(probe.NewHost(probetest.Tree(t, map[string]string{"proc/cpuinfo": c.file})))
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if got := Model(probe.NewHost(probetest.Tree(t, map[string]string{"proc/cpuinfo": cpuinfo(1, 2, 4)}))); got != "Some CPU @ 2.00GHz" {
		t.Errorf("the model is %q", got)
	}
	if got := Model(probe.NewHost(probetest.Tree(t, map[string]string{"proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\n"}))); got != "" {
		t.Errorf("without a name the model is %q", got)
	}
	if _, err := CountCPUs(probe.NewHost(probetest.Tree(t, nil))); probetest.Message(err) != "read /proc/cpuinfo: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
