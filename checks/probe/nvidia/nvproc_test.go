package nvidia

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestNVIDIAProc(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/driver/nvidia/version":                       "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.148.08  Release Build  (dvs-builder)  \nGCC version:  13\n",
		"proc/driver/nvidia/gpus/0000:c1:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1234\n",
		"proc/driver/nvidia/gpus/0000:18:00.0/information": "GPU UUID: \t GPU-????????-????\n",
		"proc/driver/nvidia/gpus/0001:00:00.0/":            "",
		"proc/driver/nvidia/gpus/0000:08:00.0/information": "Device Minor: \t 3\nGPU Excluded:\t Yes\n", // NVML does not count it
	}))
	if v, err := probe.DriverVersion(h); err != nil || v != "570.148.08" {
		t.Errorf("DriverVersion = %q, %v", v, err)
	}
	gpus, err := DriverGPUs(h)
	if diff := cmp.Diff([]string{"0000:18:00.0", "0000:c1:00.0", "0001:00:00.0"}, gpus); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for pci, want := range map[string]string{"0000:c1:00.0": "GPU-1234", "0000:18:00.0": "", "0001:00:00.0": "", "none": ""} {
		if got := DriverGPUUUID(h, pci); got != want {
			t.Errorf("%s: %q, want %q", pci, got, want)
		}
	}
}

func TestParseDriverVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n": "470.256.02",
		"NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95  Thu":                               "580.95",
		"": "", "\x00\xff. .. a.b 1.": "", "Kernel Module 1. .. .5": "",
	} {
		if got := probe.ParseDriverVersion(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestNoNVIDIAProc(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, nil))
	if v, err := probe.DriverVersion(h); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q, %v", v, err)
	}
	if gpus, err := DriverGPUs(h); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q, %v", gpus, err)
	}
	if v, err := probe.DriverVersion(probe.NewHost(probetest.Tree(t, map[string]string{"proc/driver/nvidia/version": "\x00"}))); err == nil {
		t.Errorf("%q", v)
	}
}

func FuzzDriverVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024")
	f.Add("Kernel Module .")
	f.Add("Kernel Module 1.")
	f.Fuzz(func(t *testing.T, text string) {
		if v := probe.ParseDriverVersion(text); v != "" && (!strings.Contains(text, v) || strings.Trim(v, "0123456789.") != "") {
			t.Errorf("%q", v)
		}
	})
}
