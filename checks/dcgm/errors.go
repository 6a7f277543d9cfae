package dcgm

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"

	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// dcgmClass is the effect of a DCGM error on the node, see checks/dcgm/dcgm.toml.
type dcgmClass string

const (
	dcgmFails dcgmClass = "fail"
	dcgmWarns dcgmClass = "warn"
	dcgmInfo  dcgmClass = "info"
)

// dcgmRow is a row of checks/dcgm/dcgm.toml.
type dcgmRow struct {
	Code   int           `toml:"code"`
	Name   string        `toml:"name"`
	Class  dcgmClass     `toml:"class"`
	Remedy checks.Remedy `toml:"remedy"`
	Says   string        `toml:"says"`
	Only   string        `toml:"only"`
	Source string        `toml:"source"`
	Look   string        `toml:"look"`
}

// dcgmTable is the table of DCGM's errors.
type dcgmTable []dcgmRow

//go:embed dcgm.toml
var dcgmData string

// dcgmRows parses the table when an error is judged; a healthy node never does that.
var dcgmRows = sync.OnceValue(func() dcgmTable {
	var t struct {
		Error dcgmTable `toml:"error"`
	}
	if _, err := toml.Decode(dcgmData, &t); err != nil {
		panic(fmt.Sprintf("checks: dcgm.toml: %v", err))
	}
	return t.Error
})

// find returns the row of a code, or without a code of a text; nil for an unknown error.
func (t dcgmTable) find(code int, text string) *dcgmRow {
	i := slices.IndexFunc(t, func(r dcgmRow) bool {
		if code < 0 {
			part := cmp.Or(r.Only, r.Says)
			return part != "" && strings.Contains(text, part)
		}
		return r.Code == code && strings.Contains(text, r.Only)
	})
	if i < 0 {
		return nil
	}
	return &t[i]
}

// severity returns the severity of an error. failed: DCGM reports a failure. Unknown errors and
// DCGM's warnings do not drain the node.
func (r *dcgmRow) severity(failed bool) checks.Severity {
	switch {
	case r != nil && r.Class == dcgmInfo:
		return checks.OK
	case r != nil && r.Class == dcgmFails && failed:
		return checks.Fail
	}
	return checks.Warn
}

// dcgmErrorFile is the file with a site's classes, unless DCGM_ERRORS names another.
const dcgmErrorFile = "/etc/nhc/dcgm.toml"

// readDCGMErrors returns the table with the site's changes; with an unusable file the built-in table
// and the error.
func readDCGMErrors(env *checks.Env) (dcgmTable, error) {
	path := env.Lookup("DCGM_ERRORS")
	if path == "" {
		path = dcgmErrorFile
	}
	env.At("read %s", path)
	data, err := probe.ReadTrusted(env.Host, path)
	if errors.Is(err, fs.ErrNotExist) && path == dcgmErrorFile {
		return dcgmRows(), nil
	}
	if err != nil {
		return dcgmRows(), err
	}
	t, err := applySite(dcgmRows(), path, string(data))
	if err != nil {
		return dcgmRows(), errors.New(checks.OneLine(err))
	}
	return t, nil
}

// ClassErrors returns all errors of a site's classes of DCGM's errors, each with its line.
func ClassErrors(path string, text []byte) error {
	_, err := applySite(dcgmRows(), path, string(text))
	return err
}

// applySite returns the table with a site's classes. A site can add codes.
func applySite(t dcgmTable, path, text string) (dcgmTable, error) {
	var site struct {
		Error []struct {
			Code  *int      `toml:"code"`
			Name  string    `toml:"name"`
			Class dcgmClass `toml:"class"`
		} `toml:"error"`
	}
	r, err := checks.DecodeSite(path, text, &site)
	if err != nil {
		return nil, err
	}
	t = slices.Clone(t)
	for n, s := range site.Error {
		line := r.Line(`\s*\[\[\s*error\s*\]\]`, n)
		if !slices.Contains([]dcgmClass{dcgmFails, dcgmWarns, dcgmInfo}, s.Class) {
			r.Wrong(line, "class %q, want fail, warn or info", s.Class)
			continue
		}
		known := false
		for i := range t {
			if s.Code != nil && t[i].Code == *s.Code || s.Name != "" && t[i].Name == strings.TrimPrefix(s.Name, "DCGM_FR_") {
				t[i].Class, known = s.Class, true
			}
		}
		switch {
		case known:
		case s.Code == nil:
			r.Wrong(line, "DCGM has no error %q, want a name such as VOLATILE_DBE_DETECTED, or a code", s.Name)
		default:
			t = append(t, dcgmRow{Code: *s.Code, Name: strings.TrimPrefix(s.Name, "DCGM_FR_"), Class: s.Class})
		}
	}
	return t, errors.Join(r.Errs...)
}

// dcgmCode is the prefix of the finding codes of DCGM's errors: dcgm.fr.58.
const dcgmCode = "dcgm.fr."

// WhatToDo returns the advice on a DCGM error.
func WhatToDo(code string) string {
	number, ok := strings.CutPrefix(code, dcgmCode)
	n, err := strconv.Atoi(number)
	if !ok || err != nil && number != "unknown" {
		return ""
	}
	row := dcgmRows().find(n, "")
	if err != nil || row == nil {
		return "nhc-gpu does not know this error: look it up in dcgm_errors.h of the installed DCGM, and give it a class in " + dcgmErrorFile + " (docs/reference/dcgm.md)."
	}
	does := map[checks.Remedy]string{
		checks.ReseatOrRMA: "Probably a hardware fault: with no job on the node, run check_dcgm_diag 3 or NVIDIA's field diagnostic; if that fails, too, have the GPU replaced.",
		checks.ResetGPU:    checks.ResetAdvice,
		checks.RebootNode:  "Reboot the node; if the error returns, power the node off and on, then have the GPU examined.",
		checks.CheckFabric: "Check Fabric in nvidia-smi -q, the fabric manager, and SXid errors in dmesg. " + checks.ResetAllAdvice,
	}
	if do := does[row.Remedy]; do != "" {
		return do
	}
	if row.Class == dcgmFails {
		return "Compare with check_gpu_nvlink, check_gpu_fabric and dmesg for the same GPU; first reset the GPU or reboot. See docs/reference/dcgm.md."
	}
	return "Nothing now: the node is not drained, since DCGM also reports this error without a fault of the hardware." + checks.Before(" Look at ", row.Look, ".")
}
