// Package runtimes tests metacni with real container runtimes: containerd, its shim and
// runc, built once from their modules, run real pods that are created through the CRI, as
// the kubelet does. Some tests also have a real API server (see package server in
// internal/e2e/kube). Other tests run the podman of the distribution, and cnitool.
//
// The tests run on a private host with processes of its own, for which they need root.
// Where there can be none, or the programs cannot be built, the tests are skipped; with
// METACNI_E2E=require in the environment they fail instead.
package runtimes
