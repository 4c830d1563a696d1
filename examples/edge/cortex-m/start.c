/* Start of a Cortex-M4F program: vector table, FPU, variables, main. Output by semihosting, which emulators and debuggers
 * understand. */
#include <stdint.h>

extern uint32_t stack_top[], data_begin[], data_end[], data_flash[], bss_begin[], bss_end[];
int main(void);

/* Asks the host: 0x04 writes a text, 0x20 ends the program. */
static int ask_host(int what, const void *argument) {
  register int operation __asm__("r0") = what;
  register const void *about __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(operation) : "r"(about) : "memory");
  return operation;
}

void print(const char *text) { ask_host(0x04, text); }

_Noreturn static void end(int status) {
  const uint32_t report[] = {0x20026, (uint32_t)status}; /* the application has ended, with a status */
  for (;;) ask_host(0x20, report);
}

static void fault(void) {
  print("a fault of the processor\n");
  end(3);
}

void reset(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xF << 20; /* CPACR: the FPU is enabled */
  __asm__ volatile("dsb\n isb");
  for (uint32_t *to = data_begin, *from = data_flash; to < data_end;) *to++ = *from++;
  for (uint32_t *to = bss_begin; to < bss_end;) *to++ = 0;
  end(main());
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, reset, fault, fault, fault, fault, fault};
