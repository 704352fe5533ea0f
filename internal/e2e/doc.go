// Package e2e tests the example plugins as runtimes use them: it builds the
// executables and runs them with real plugins in real network namespaces.
//
// The tests run on a private host (see delegate/conform/host): as root in new
// namespaces, otherwise in a user namespace. Where neither is available the
// tests are skipped; with METACNI_E2E=require in the environment they fail
// instead. required.txt lists the tests that must not be skipped on a fully
// equipped machine.
package e2e
