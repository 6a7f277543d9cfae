package probe

import "fmt"

// The settings that name a vendor's library, each a file of its own in place of
// what the system's loader would find.
const (
	SettingNVML     = "NVML_LIBRARY"
	SettingCUDA     = "CUDA_LIBRARY"
	SettingNCCL     = "NCCL_LIBRARY"
	SettingCUBLASLt = "CUBLASLT_LIBRARY"
	SettingDCGM     = "DCGM_LIBRARY"
)

// SetLibraries takes the settings of vendors' libraries from variables. Each counts
// until its library is first asked for.
func (h *Host) SetLibraries(vars map[string]string) {
	h.nvmlLibrary = vars[SettingNVML]
	h.libraries = map[string]string{}
	for _, s := range []string{SettingCUDA, SettingNCCL, SettingCUBLASLt, SettingDCGM} {
		if vars[s] != "" {
			h.libraries[s] = vars[s]
		}
	}
}

// library is what to hand to dlopen: the file that the setting names, else the name
// by which the system's loader finds it. A recorded node has none of this machine's.
func (h *Host) library(setting, name string) (string, error) {
	if path := h.libraries[setting]; path != "" {
		return path, nil
	}
	if h.root != "/" {
		return "", fmt.Errorf("load %s: %w below %s; %s names one", name, ErrOtherNode, h.root, setting)
	}
	return name, nil
}
