// Package e2e tests the example plugins as runtimes use them: the built
// executables, run with real plugins in real network namespaces.
//
// The tests run on a private host (see examples/lab/host): as root in new
// namespaces, otherwise in a user namespace. Where neither is to be had they
// are skipped; with METACNI_E2E=require in the environment that is a failure.
// What must not be skipped where everything is to be had stands in
// required.txt.
package e2e
