package probe

import (
	"fmt"
	"strings"
	"testing"
)

// cpuinfo writes the file of a machine as the kernel does on x86.
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
			want: CPUs{Sockets: 1, Cores: 1, Threads: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := tree(t, map[string]string{"proc/cpuinfo": c.file}).CPUs()
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	if _, err := tree(t, nil).CPUs(); message(err) != "read /proc/cpuinfo: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
