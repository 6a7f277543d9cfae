package lbnl

import (
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// These are indexes of fields of /proc/PID/stat after the name (proc(5) counts from 3 there).
const (
	statUtime     = 11
	statStime     = 12
	statStarttime = 19
	statVsize     = 20
	statRSS       = 21
)

const clockTicks = 100 // a second, on every supported architecture

// mount covers files of /proc/PID, so that ps(1) and other readers see the same invented values.
func (f *procFake) mount(pid int) error {
	texts := map[string]string{}
	for _, name := range []string{"stat", "statm", "status"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return err
		}
		texts[name] = string(text)
	}
	up, err := uptime()
	if err != nil {
		return err
	}
	comm, stat := splitStat(texts["stat"])
	statm := strings.Fields(texts["statm"])
	f.setTimes(stat, up)
	if f.RSSKB != nil {
		stat[statRSS] = strconv.Itoa(*f.RSSKB / pageKB())
		statm[1], statm[2] = stat[statRSS], "0"
		texts["status"] = setStatus(texts["status"], "VmRSS|RssAnon", *f.RSSKB)
		texts["status"] = setStatus(texts["status"], "RssFile|RssShmem", 0)
	}
	if f.VSZKB != nil {
		stat[statVsize] = strconv.Itoa(*f.VSZKB * 1024)
		statm[0] = strconv.Itoa(*f.VSZKB / pageKB())
		texts["status"] = setStatus(texts["status"], "VmSize", *f.VSZKB)
	}
	texts["stat"] = fmt.Sprintf("%d (%s) %s\n", pid, comm, strings.Join(stat, " "))
	texts["statm"] = strings.Join(statm, " ") + "\n"
	if f.Cmdline != nil {
		texts["cmdline"] = strings.Join(f.Cmdline, "\x00") + "\x00"
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		path := fmt.Sprintf("%s/%d-%s", base, pid, name)
		if err := bindText(path, fmt.Sprintf("/proc/%d/%s", pid, name), texts[name]); err != nil {
			return err
		}
	}
	return nil
}

// setTimes makes the process old enough for its CPU time.
func (f *procFake) setTimes(stat []string, up float64) {
	age := min(3000, up-1)
	if f.PCPU != nil {
		share := (*f.PCPU + 0.07) / 100 // so that ps does not round it down
		stat[statUtime] = strconv.Itoa(int(math.RoundToEven(share * age * clockTicks)))
		stat[statStime] = "0"
		stat[statStarttime] = strconv.Itoa(int((up - age) * clockTicks))
	}
	if f.TimeS != nil {
		age = min(up-1, max(age, float64(*f.TimeS*4)))
		stat[statUtime] = strconv.Itoa(*f.TimeS * clockTicks)
		stat[statStime] = "0"
		stat[statStarttime] = strconv.Itoa(max(1, int((up-age)*clockTicks)))
	}
}

// setStatus replaces lines in the text of /proc/PID/status.
func setStatus(text, names string, kb int) string {
	line := regexp.MustCompile(`(?m)^(` + names + `):.*$`)
	return line.ReplaceAllString(text, fmt.Sprintf("${1}:\t%8d kB", kb))
}

// uptime returns the seconds since the machine started.
func uptime() (float64, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseFloat(first, 64)
}

func pageKB() int { return os.Getpagesize() / 1024 }
