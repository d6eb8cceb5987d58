// Google Test, as far as tests of kernels use it: TEST, TEST_F, the assertions, fixtures. What fails is printed, and is the exit code.
#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>
namespace testing {
class Test {
  public:
    virtual ~Test() = default;
    static void SetUpTestSuite() {}
    static void TearDownTestSuite() {}
    virtual void SetUp() {}
    virtual void TearDown() {}
    virtual void TestBody() = 0;
};
struct Message {
    std::ostringstream text;
    template <class T> Message& operator<<(const T& v) { text << v; return *this; }
    Message& operator<<(std::ostream& (*v)(std::ostream&)) { text << v; return *this; }
};
class AssertionResult {
  public:
    explicit AssertionResult(bool ok) : ok(ok) {}
    operator bool() const { return ok; }
    template <class T> AssertionResult& operator<<(const T& v) { std::ostringstream s; s << v; text += s.str(); return *this; }
    const char* message() const { return text.c_str(); }
  private:
    bool ok;
    std::string text;
};
inline AssertionResult AssertionSuccess() { return AssertionResult(true); }
inline AssertionResult AssertionFailure() { return AssertionResult(false); }
struct Case { const char *suite, *name; std::function<Test*()> make; void (*begin)(); void (*end)(); };
inline std::vector<Case>& cases() { static std::vector<Case> v; return v; }
inline bool& failing() { static bool v = false; return v; }
template <class F> int registered(const char* suite, const char* name, std::function<Test*()> make) {
    cases().push_back({suite, name, make, F::SetUpTestSuite, F::TearDownTestSuite}); return 0; }
struct Failure {                                                 // `return Failure(...) = Message() << ...`: of no value
    const char *file, *what;
    int line;
    bool fails = true;
    void operator=(const Message& m) const {
        std::cout << file << ":" << line << (fails ? ": Failure: " : ": ") << what << " " << m.text.str() << std::endl;
        failing() |= fails;
    }
};
template <class T> bool alike(T a, T b) {                        // within four units in the last place
    return a == b || std::abs(a - b) <= 4 * std::max(std::nextafter(std::abs(a), T(INFINITY)) - std::abs(a),
        std::nextafter(std::abs(b), T(INFINITY)) - std::abs(b));
}
template <class F> bool throws(F&& f) { try { f(); } catch (...) { return true; } return false; }
inline void InitGoogleTest(int* = nullptr, char** = nullptr) {}
inline int run_all() {
    int failed = 0;
    const char* suite = "";
    const std::vector<Case>& every = cases();
    for (size_t i = 0; i < every.size(); ++i) {
        const Case& c = every[i];
        if (std::strcmp(suite, c.suite)) c.begin(), suite = c.suite;
        failing() = false;
        Test* t = c.make();
        t->SetUp();
        if (!failing()) t->TestBody();
        t->TearDown();
        delete t;
        failed += failing();
        std::cout << (failing() ? "[  FAILED  ] " : "[       OK ] ") << c.suite << "." << c.name << std::endl;
        if (i + 1 == every.size() || std::strcmp(every[i + 1].suite, suite)) c.end();
    }
    return failed != 0;
}
}  // namespace testing
#define RUN_ALL_TESTS() ::testing::run_all()
#ifdef main                                                      // the watched build: it holds kernels, and no test runs there
#define SIMT_REGISTER(fixture, s, n)
#else
#define SIMT_REGISTER(fixture, s, n) static const int simt_registered_##s##_##n = ::testing::registered<fixture>(#s, #n, [] { return new s##_##n##_Test; });
#endif
#define SIMT_TEST(fixture, s, n) \
    void simt_test_##s##_##n(); \
    class s##_##n##_Test : public fixture { public: void TestBody() override; }; \
    SIMT_REGISTER(fixture, s, n) \
    inline void s##_##n##_Test::TestBody()
#define TEST(s, n) SIMT_TEST(::testing::Test, s, n)
#define TEST_F(s, n) SIMT_TEST(s, s, n)
#define SIMT_UNLESS(ok, what, ret) if (ok) ; else ret ::testing::Failure{__FILE__, what, __LINE__} = ::testing::Message()
#define EXPECT_TRUE(a) SIMT_UNLESS((a), "EXPECT_TRUE(" #a ")", )
#define ASSERT_TRUE(a) SIMT_UNLESS((a), "ASSERT_TRUE(" #a ")", return)
#define EXPECT_FALSE(a) SIMT_UNLESS(!(a), "EXPECT_FALSE(" #a ")", )
#define ASSERT_FALSE(a) SIMT_UNLESS(!(a), "ASSERT_FALSE(" #a ")", return)
#define SIMT_COMPARED(a, op, b, ret) SIMT_UNLESS((a) op (b), #a " " #op " " #b, ret)
#define EXPECT_EQ(a, b) SIMT_COMPARED(a, ==, b, )
#define ASSERT_EQ(a, b) SIMT_COMPARED(a, ==, b, return)
#define EXPECT_NE(a, b) SIMT_COMPARED(a, !=, b, )
#define ASSERT_NE(a, b) SIMT_COMPARED(a, !=, b, return)
#define EXPECT_LT(a, b) SIMT_COMPARED(a, <, b, )
#define ASSERT_LT(a, b) SIMT_COMPARED(a, <, b, return)
#define EXPECT_LE(a, b) SIMT_COMPARED(a, <=, b, )
#define ASSERT_LE(a, b) SIMT_COMPARED(a, <=, b, return)
#define EXPECT_GT(a, b) SIMT_COMPARED(a, >, b, )
#define ASSERT_GT(a, b) SIMT_COMPARED(a, >, b, return)
#define EXPECT_GE(a, b) SIMT_COMPARED(a, >=, b, )
#define ASSERT_GE(a, b) SIMT_COMPARED(a, >=, b, return)
#define EXPECT_NEAR(a, b, by) SIMT_UNLESS(std::abs(double(a) - double(b)) <= double(by), #a " near " #b, )
#define ASSERT_NEAR(a, b, by) SIMT_UNLESS(std::abs(double(a) - double(b)) <= double(by), #a " near " #b, return)
#define EXPECT_FLOAT_EQ(a, b) SIMT_UNLESS(::testing::alike<float>(a, b), #a " == " #b, )
#define ASSERT_FLOAT_EQ(a, b) SIMT_UNLESS(::testing::alike<float>(a, b), #a " == " #b, return)
#define EXPECT_DOUBLE_EQ(a, b) SIMT_UNLESS(::testing::alike<double>(a, b), #a " == " #b, )
#define ASSERT_DOUBLE_EQ(a, b) SIMT_UNLESS(::testing::alike<double>(a, b), #a " == " #b, return)
#define EXPECT_STREQ(a, b) SIMT_UNLESS(!std::strcmp(a, b), #a " == " #b, )
#define ASSERT_STREQ(a, b) SIMT_UNLESS(!std::strcmp(a, b), #a " == " #b, return)
#define EXPECT_NO_THROW(...) SIMT_UNLESS(!::testing::throws([&] { __VA_ARGS__; }), "no throw of " #__VA_ARGS__, )
#define ASSERT_NO_THROW(...) SIMT_UNLESS(!::testing::throws([&] { __VA_ARGS__; }), "no throw of " #__VA_ARGS__, return)
#define EXPECT_ANY_THROW(...) SIMT_UNLESS(::testing::throws([&] { __VA_ARGS__; }), "a throw of " #__VA_ARGS__, )
#define EXPECT_PRED_FORMAT2(f, a, b) SIMT_UNLESS(f(#a, #b, a, b), #f "(" #a ", " #b ")", )
#define ASSERT_PRED_FORMAT2(f, a, b) SIMT_UNLESS(f(#a, #b, a, b), #f "(" #a ", " #b ")", return)
#define EXPECT_PRED_FORMAT3(f, a, b, c) SIMT_UNLESS(f(#a, #b, #c, a, b, c), #f "(" #a ", " #b ", " #c ")", )
#define ASSERT_PRED_FORMAT3(f, a, b, c) SIMT_UNLESS(f(#a, #b, #c, a, b, c), #f "(" #a ", " #b ", " #c ")", return)
#define ADD_FAILURE() ::testing::Failure{__FILE__, "ADD_FAILURE()", __LINE__} = ::testing::Message()
#define FAIL() return ::testing::Failure{__FILE__, "FAIL()", __LINE__} = ::testing::Message()
#define GTEST_FAIL() FAIL()
#define GTEST_SKIP() return ::testing::Failure{__FILE__, "skipped:", __LINE__, false} = ::testing::Message()
#define SUCCEED() ::testing::Message()
#define SCOPED_TRACE(text) static_cast<void>(text)
