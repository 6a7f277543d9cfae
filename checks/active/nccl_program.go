package active

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// ncclOutput is the limit of a program's output, bytes.
const ncclOutput = 1 << 20

// runPrograms runs the operation with a program of nccl-tests.
func runPrograms(t *ncclRun) {
	program := t.Programs
	if !strings.HasSuffix(program, "_perf") {
		program = path.Join(program, t.op.Program)
	}
	var best *measure
	for range max(t.Repeats, 1) {
		perf := runProgram(t, program)
		if perf == nil {
			return
		}
		last := recordPerf(t, perf)
		if best == nil || last.Value > best.Value {
			best = &last
		}
		if t.failures || t.Least <= 0 || !best.worse(t.Least) {
			break
		}
	}
	best.Least = t.Least
	t.record(*best)
}

// buildArguments returns the arguments of the program.
func buildArguments(t *ncclRun) []string {
	begin, end := int64(t.Begin), int64(t.End)
	if begin == 0 && end == 0 {
		begin = ncclUsual
	}
	if begin == 0 {
		begin = end
	}
	end = max(end, begin)
	iterations := t.Iterations
	if iterations == 0 {
		iterations = ncclIterations
	}
	return []string{
		"-b", strconv.FormatInt(begin, 10), "-e", strconv.FormatInt(end, 10), "-f", strconv.Itoa(max(t.Factor, 2)),
		"-n", strconv.Itoa(iterations), "-g", strconv.Itoa(len(t.gpus)), "-c", "1",
	}
}

// buildEnvironment returns the environment of the program: the NCCL settings of the line, and the
// GPUs of the test.
func buildEnvironment(t *ncclRun) []string {
	var uuids []string
	for _, g := range t.gpus {
		uuids = append(uuids, g.UUID.Value)
	}
	env := []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strings.Join(uuids, ","), cuda.NoMPS}
	return append(env, t.settings().Environ()...)
}

// runProgram runs a program once; it returns nil if there is no usable output.
func runProgram(t *ncclRun, program string) *ncclPerf {
	t.at("run %s", program)
	x := t.env.Host.Run(t.ctx, probe.Command{
		Argv: append([]string{program}, buildArguments(t)...), Env: buildEnvironment(t), Unset: "NCCL_",
		Timeout: t.activeTest.Bound, Output: ncclOutput, Errors: 4 << 10,
	})
	fail := func(f checks.Finding, format string, args ...any) *ncclPerf {
		t.failures = true
		if t.ctx.Err() != nil { // the end of the test has ended it
			t.activeRun.reportFailure(nil, "run "+program, t.ctx.Err())
			return nil
		}
		t.report(checks.Device{}, f, "%s: %s", program, fmt.Sprintf(format, args...))
		return nil
	}
	unknown := checks.Finding{Code: "nccl.programs", Severity: checks.Unknown}
	switch {
	case x.Err != nil:
		return fail(unknown, "%v", x.Err)
	case x.TimedOut:
		return fail(unknown, "did not end within %v", t.activeTest.Bound)
	}
	perf, err := parseNCCLPerf(string(x.Output))
	switch {
	case err != nil && x.Status != 0:
		return fail(unknown, "ended with status %d: %s", x.Status, lastLine(string(x.Output)+"\n"+string(x.Errors)))
	case err != nil:
		return fail(unknown, "%v", err)
	case x.Status != 0 && perf.wrong <= 0: // it also returns 1 for wrong data
		return fail(unknown, "ended with status %d: %s", x.Status, lastLine(string(x.Output)+"\n"+string(x.Errors)))
	case perf.wrong < 0:
		return fail(unknown, "output without a line about out of bounds values")
	}
	return perf
}

// lastLine returns the last line that has more than blanks and #.
func lastLine(text string) string {
	last := ""
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Trim(line, "# ") != "" {
			last = line
		}
	}
	return strings.ToValidUTF8(last[:min(len(last), 200)], "?")
}

// recordPerf reports wrong data, and records the rates; it returns that of the largest size.
// nccl-tests does not print NCCL's algorithm, so no floor applies unless the line names one.
func recordPerf(t *ncclRun, perf *ncclPerf) measure {
	if perf.wrong > 0 {
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "nccl.wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "0", Got: strconv.Itoa(perf.wrong)}, "%s of nccl-tests: values out of bounds", t.op.Name)
	}
	last, _ := perf.largest()
	algorithm := t.Algorithm
	if algorithm == "" {
		algorithm = "auto"
	}
	m := measure{
		Test: t.test, Algorithm: algorithm, Size: last.size, Ranks: len(t.gpus), Model: t.gpus[0].Name.Value,
		What: fmt.Sprintf("bus bandwidth of %s, %s by nccl-tests", t.op.Name, sizeText(last.size)), Value: last.busbw(), Unit: "GB/s",
	}
	for _, row := range perf.rows {
		if row.size != last.size {
			other := m
			other.Size, other.Value = row.size, row.busbw()
			other.What = fmt.Sprintf("bus bandwidth of %s, %s by nccl-tests", t.op.Name, sizeText(row.size))
			t.record(other)
		}
	}
	return m
}
