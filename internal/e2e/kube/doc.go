// Package kube tests what metacni needs of Kubernetes against a real API server: etcd
// and kube-apiserver, built once from their modules and run on the loopback interface.
// There is no kubelet, scheduler or controller; the tests create what these would.
//
// The tests run on a private host where there can be one (see package e2e). Where the
// programs cannot be built, the tests are skipped; with METACNI_E2E=require in the
// environment they fail instead.
package kube
