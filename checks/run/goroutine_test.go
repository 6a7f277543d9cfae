package run

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// panicEnv makes this test binary panic in a goroutine.
const panicEnv = "NHC_GPU_TEST_PANIC"

// A panic in a goroutine of the supervisor ends the program as the hook defines.
func TestGoroutinePanic(t *testing.T) {
	if os.Getenv(panicEnv) != "" {
		OnPanic(func(cause any) {
			os.Stdout.WriteString("caught " + cause.(string))
			os.Exit(3)
		})
		Go(func() { panic("on purpose") })
		select {}
	}
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", "-test.run=TestGoroutinePanic$")
	cmd.Env = append(os.Environ(), panicEnv+"=1")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(string(out), "caught on purpose") {
		t.Errorf("exit status %d, %s", code, out)
	}
}
