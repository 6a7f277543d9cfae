package dcgm

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"

	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// dcgmClass says what an error of DCGM's means for the node.
type dcgmClass string

// The classes, see checks/dcgm/dcgm.toml.
const (
	dcgmFails dcgmClass = "fail"
	dcgmWarns dcgmClass = "warn"
	dcgmTells dcgmClass = "info"
)

// dcgmRow is a row of checks/dcgm/dcgm.toml.
type dcgmRow struct {
	Code   int           `toml:"code"`
	Name   string        `toml:"name"`
	Class  dcgmClass     `toml:"class"`
	Remedy checks.Remedy `toml:"remedy"`
	Says   string        `toml:"says"`
	Source string        `toml:"source"`
}

// dcgmTable is the classes of DCGM's errors.
type dcgmTable []dcgmRow

//go:embed dcgm.toml
var dcgmData string

// dcgmRows reads the table when something is to be judged by it: a healthy node never
// does.
var dcgmRows = sync.OnceValue(func() dcgmTable {
	var t struct {
		Error dcgmTable `toml:"error"`
	}
	if _, err := toml.Decode(dcgmData, &t); err != nil {
		panic(fmt.Sprintf("checks: dcgm.toml: %v", err))
	}
	return t.Error
})

// find is the row of a code, or of a text where DCGM gives none; nil for an error that
// is not known.
func (t dcgmTable) find(code int, text string) *dcgmRow {
	i := slices.IndexFunc(t, func(r dcgmRow) bool {
		return code >= 0 && r.Code == code || code < 0 && r.Says != "" && strings.Contains(text, r.Says)
	})
	if i < 0 {
		return nil
	}
	return &t[i]
}

// severity is that of an error; failed: DCGM itself calls what it is about a failure.
// What nobody knows, and what DCGM only warns of, takes no node out of service.
func (r *dcgmRow) severity(failed bool) checks.Severity {
	switch {
	case r != nil && r.Class == dcgmTells:
		return checks.OK
	case r != nil && r.Class == dcgmFails && failed:
		return checks.Fail
	}
	return checks.Warn
}

// dcgmErrorFile is where a site changes classes, unless DCGM_ERRORS names another.
const dcgmErrorFile = "/etc/nhc/dcgm.toml"

// readDCGMErrors is the table with the site's changes. Without a usable file it stands as
// it is, and the error says why.
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
	t, err := changeDCGM(dcgmRows(), path, string(data))
	if err != nil {
		return dcgmRows(), errors.New(checks.OneLine(err))
	}
	return t, nil
}

// changeDCGM is a table with a site's classes. A row of its own makes a code known.
func changeDCGM(t dcgmTable, path, text string) (dcgmTable, error) {
	var site struct {
		Error []struct {
			Code  *int      `toml:"code"`
			Name  string    `toml:"name"`
			Class dcgmClass `toml:"class"`
		} `toml:"error"`
	}
	md, err := toml.Decode(text, &site)
	if err != nil {
		return nil, checks.TOMLPlace(path, err)
	}
	r := checks.SiteFile{Path: path, Text: text}
	for _, key := range md.Undecoded() {
		r.Wrong(r.Line(`\s*`+regexp.QuoteMeta(key[len(key)-1])+`\s*=`, 0), "unknown key %s", key)
	}
	t = slices.Clone(t)
	for n, s := range site.Error {
		line := r.Line(`\s*\[\[\s*error\s*\]\]`, n)
		i := slices.IndexFunc(t, func(r dcgmRow) bool {
			return s.Code != nil && r.Code == *s.Code || s.Name != "" && r.Name == strings.TrimPrefix(s.Name, "DCGM_FR_")
		})
		switch {
		case !slices.Contains([]dcgmClass{dcgmFails, dcgmWarns, dcgmTells}, s.Class):
			r.Wrong(line, "class %q, want fail, warn or info", s.Class)
		case i >= 0:
			t[i].Class = s.Class
		case s.Code == nil:
			r.Wrong(line, "DCGM has no error %q", s.Name)
		default:
			t = append(t, dcgmRow{Code: *s.Code, Name: strings.TrimPrefix(s.Name, "DCGM_FR_"), Class: s.Class})
		}
	}
	return t, errors.Join(r.Errs...)
}

// dcgmCode is the code of findings about an error of DCGM's: dcgm.fr.58.
const dcgmCode = "dcgm.fr."

// WhatToDo is the advice on an error of DCGM's.
func WhatToDo(code string) string {
	number, ok := strings.CutPrefix(code, dcgmCode)
	n, err := strconv.Atoi(number)
	if !ok || err != nil && number != "unknown" {
		return ""
	}
	row := dcgmRows().find(n, "")
	if err != nil || row == nil {
		return "An error that is not known here: see dcgm_errors.h of the installed DCGM. A row in " + dcgmErrorFile + " gives it a class (docs/reference/dcgm.md)."
	}
	does := map[checks.Remedy]string{
		checks.ReseatOrRMA: "Hardware, by all that is known: end what runs on the GPU, reset it, run check_dcgm_diag 3 or NVIDIA's field diagnostic; if that says the same have it replaced.",
		checks.ResetGPU:    "End what runs on the GPU, then nvidia-smi --gpu-reset -i with its PCI address; if that fails reboot.",
		checks.RebootNode:  "Reboot the node; if it comes back power it off for a moment, then have the GPU looked at.",
		checks.CheckFabric: "See nvidia-smi -q (Fabric), the fabric manager and dmesg for SXid; reset the GPUs and NVSwitches together, or reboot.",
	}
	if do := does[row.Remedy]; do != "" {
		return do
	}
	if row.Class == dcgmFails {
		return "See docs/reference/dcgm.md, and what check_gpu_nvlink, check_gpu_fabric and dmesg say of the same GPU; a reset or a reboot is the first cure."
	}
	return "Nothing at once, it drains no node: " + dcgmWhy(row) + ". See docs/reference/dcgm.md; " + dcgmErrorFile + " makes it fail where a site wants that."
}

// dcgmWhy is the source of a row.
func dcgmWhy(r *dcgmRow) string {
	var t struct {
		Sources map[string]string `toml:"sources"`
	}
	if _, err := toml.Decode(dcgmData, &t); err != nil {
		return r.Source
	}
	return t.Sources[r.Source]
}
