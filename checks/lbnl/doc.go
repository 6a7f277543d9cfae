// Package lbnl has the checks of LBNL NHC, and those of services, files and the network in
// their style.
package lbnl
