package bench

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
)

// A run costs the same on a node with many CPUs: GOMAXPROCS is what Go's runtime would
// choose there. Page faults stand for the cost, since they hardly vary.
func TestCostDoesNotGrowWithTheCPUs(t *testing.T) {
	faults := func(cpus int, conf string) int64 {
		t.Setenv("GOMAXPROCS", fmt.Sprint(cpus))
		argv := words(confFile(t, conf))
		least := int64(0)
		for range 3 {
			cmd := exec.Command(argv[0], argv[1:]...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			ru, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage) // with what its workers had
			if !ok || ru.Minflt == 0 {
				t.Fatalf("no page faults: %v", cmd.ProcessState)
			}
			if least == 0 || ru.Minflt < least {
				least = ru.Minflt
			}
		}
		return least
	}
	for name, conf := range map[string]string{"an empty configuration": "* || A=1\n", "a line of each kind": "* || check_fs_mount -f /proc\n* || check_cmd_status -r 0 /bin/true\n* || true; true\n"} {
		few := faults(2, conf)
		for _, cpus := range []int{64, 128, 192, 256} {
			if many := faults(cpus, conf); many > few+few/10 {
				t.Errorf("%s: %d page faults with 2 CPUs, %d with %d", name, few, many, cpus)
			}
		}
	}
}
