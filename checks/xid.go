package checks

import (
	"fmt"
	"time"
)

// XidKey is an error that has a number.
type XidKey struct {
	Switch bool `json:"switch,omitempty"` // an SXid: of an NVSwitch
	Code   int  `json:"code"`
}

func (k XidKey) String() string {
	if k.Switch {
		return fmt.Sprintf("SXid %d", k.Code)
	}
	return fmt.Sprintf("Xid %d", k.Code)
}

// Finding is the code of findings about it.
func (k XidKey) Finding() string {
	if k.Switch {
		return fmt.Sprintf("gpu.sxid.%d", k.Code)
	}
	return fmt.Sprintf("gpu.xid.%d", k.Code)
}

// LogMark is a place in the kernel's log of one boot.
type LogMark struct {
	Boot string `json:"boot"`
	Next uint64 `json:"next"` // the first record behind it
}

// XidSeen is a burst of lines of the kernel's log about one error of one GPU or
// NVSwitch.
type XidSeen struct {
	Code   int       `json:"code"`
	Switch bool      `json:"switch,omitempty"` // an SXid
	PCI    string    `json:"pci"`              // of the GPU or NVSwitch
	Name   string    `json:"name"`             // what the code means
	Class  XidClass  `json:"class"`            // by the tables and the site's policy, before NVML is asked
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Before bool      `json:"before,omitempty"` // it began before the mark: First, PID, By and Text may be of then
	Lines  int       `json:"lines"`
	PID    string    `json:"pid,omitempty"`
	By     string    `json:"process,omitempty"`
	Text   string    `json:"text"` // of its first line
}

// Finding is the code that a finding of check_gpu_xid about it bears.
func (x XidSeen) Finding() string { return XidKey{Code: x.Code, Switch: x.Switch}.Finding() }

// String is "Xid 79", "SXid 20009".
func (x XidSeen) String() string { return XidKey{Code: x.Code, Switch: x.Switch}.String() }
